"""The tool `skill_view`: the instructions of a skill, and the files beside them."""

import asyncio

from pydantic import Field

from agent.errors import ToolError
from agent.prompt.skills import SkillShelf
from agent.safety.threats import scan
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, Tool


class ViewArguments(Arguments):
    """Which skill."""

    name: str | None = Field(None, description="Left out: all are listed")
    file: str | None = Field(None, description="Path of a further file in the skill's folder")


async def skill_view(context: ToolContext, arguments: ViewArguments) -> str:
    """Return a skill's instructions, one of its files, or the list of all skills."""
    if context.services.skills is None:
        raise ToolError("there are no skills here")
    return await asyncio.to_thread(_viewed, context.services.skills, arguments.name, arguments.file)


def _viewed(shelf: SkillShelf, name: str | None, file: str | None) -> str:
    if name is None:
        return "\n".join(_listed(shelf)) or "There are no skills."
    if file is not None:
        return scan(shelf.read(name, file)).text
    skill = shelf.load(name)
    files = shelf.files(name)
    beside = f"\n\n[Further files, read with file=…: {', '.join(files)}]" if files else ""
    return f"# Skill {skill.name}\n{skill.description}\n\n{skill.text}{beside}"


def _listed(shelf: SkillShelf) -> list[str]:
    try:
        names = shelf.names()
    except OSError as exc:
        raise ToolError(f"the skills cannot be read: {exc.strerror}") from exc
    lines = []
    for name in names:
        try:
            lines.append(f"- {name}: {shelf.load(name).description}")
        except ToolError as exc:
            lines.append(f"- {name} cannot be used: {exc}")
    return lines


TOOL = Tool(
    name="skill_view",
    description="Shows the instructions of a skill, or a further file that they name.",
    effect="read",
    arguments=ViewArguments,
    run=skill_view,
)
