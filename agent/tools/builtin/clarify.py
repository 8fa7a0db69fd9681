"""The tool `clarify`: asks the person a question, and goes on when they have answered."""

from typing import Annotated

from pydantic import Field, StringConstraints

from agent.errors import ToolError
from agent.tools.context import Inquiry, ToolContext
from agent.tools.registry import Arguments, Tool

MOST_CHOICES = 5
LABEL_CHARS = 60
QUESTION_CHARS = 1_500
NOBODY_ANSWERED = (
    "Nobody answered in time. Go on without an answer: use your best judgement and say what you"
    " assumed, or say what you need to know."
)

Label = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LABEL_CHARS)
]


class ClarifyArguments(Arguments):
    """What the model may say."""

    question: str = Field(min_length=1, max_length=QUESTION_CHARS)
    choices: tuple[Label, ...] = Field(
        default=(),
        max_length=MOST_CHOICES,
        description="Shown as buttons; other answers are possible",
    )


async def _run(context: ToolContext, arguments: ClarifyArguments) -> str:
    if context.services.people is None:
        raise ToolError(
            "nobody can be asked here. Use your best judgement and say what you assumed"
        )
    inquiry = Inquiry("clarify", context.call_id, TOOL.name, arguments.question, arguments.choices)
    reply = await context.services.people.ask(inquiry)
    return f"The answer: {reply.text}" if reply.state == "answered" else NOBODY_ANSWERED


TOOL = Tool(
    name="clarify",
    description=(
        "Asks the person one question and waits for the answer. Only for what you cannot find out"
        " and must know before you go on, where a wrong guess would do harm; else choose, and say"
        " what you chose."
    ),
    effect="read",
    arguments=ClarifyArguments,
    run=_run,
)
