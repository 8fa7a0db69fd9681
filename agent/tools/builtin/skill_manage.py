"""The tool `skill_manage`: writes skills, where the operator lets the model do that."""

import asyncio
from typing import Literal

from pydantic import Field

from agent.errors import ToolError
from agent.prompt.skills import SkillShelf
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool


class ManageArguments(Arguments):
    """What to do with which skill."""

    action: Literal["create", "edit", "remove"]
    name: str = Field(description="Small letters, digits, hyphens")
    text: str | None = Field(
        None,
        description="The whole SKILL.md, except to remove: front matter between lines of --- with"
        " name and description, then the instructions",
    )


async def skill_manage(context: ToolContext, arguments: ManageArguments) -> str:
    """Create, replace or remove a skill; it shows in the prompt of the next conversation."""
    if context.services.skills is None:
        raise ToolError("there are no skills here")
    return await asyncio.to_thread(_managed, context.services.skills, arguments)


def _managed(shelf: SkillShelf, arguments: ManageArguments) -> str:
    name = arguments.name
    if arguments.action == "remove":
        return f"The skill {name} was removed; its folder is kept as {shelf.remove(name)}."
    if not arguments.text:
        raise ToolError("text is required: the whole SKILL.md")
    shelf.write(name, arguments.text, new=arguments.action == "create")
    return f"The skill {name} is stored; new conversations have it in their prompt."


TOOL = Tool(
    name="skill_manage",
    description=(
        "Creates, replaces or removes a skill: instructions for a kind of task that comes up again."
        " Only when you are asked to, or a way to do something was worked out and agreed."
    ),
    effect="side_effect",
    arguments=ManageArguments,
    run=skill_manage,
    exclusive=True,
    restricted=True,
)
