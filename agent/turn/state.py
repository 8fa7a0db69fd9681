"""What the loop is given and what it changes: the agent, a turn's ports, its state, its result."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from agent.context.planner import Planner
from agent.errors import ModelError
from agent.messages import ChatMessage, text_of
from agent.models.base import ChatModel, TextSink
from agent.models.factory import choices
from agent.models.recovery import Recovery
from agent.ports import ModelCall, Spending, TurnJournal
from agent.safety.redaction import Redactor
from agent.settings import AgentSettings, CachingSettings, OutputSettings
from agent.tools.context import MakesTools
from agent.tools.gate import ApprovalRules
from agent.tools.registry import ToolRegistry
from agent.turn.pictures import Images
from agent.view.view import Entry, View

Limit = Literal["max_iterations", "budget_exhausted"]
"""Which limit of a turn is used up: its calls, or its tokens or time."""
Outcome = (
    Literal["final_text", "partial", "empty", "output_exhausted", "refused", "endless"] | Limit
)
"""How a turn ended: with an answer, one that the output limit cut, one without text, thinking that
used the output limit up, a refusal of the model, an answer without an end, or a summary of what was
done when a limit was reached."""
CONTINUE = "Continue exactly where you stopped; do not repeat anything."


@dataclass(frozen=True, slots=True)
class CallRules:
    """How tool calls are run: how long their results may be, for which of them people are asked."""

    output: OutputSettings
    approval: ApprovalRules = field(default_factory=ApprovalRules)

    @property
    def redactor(self) -> Redactor:
        """What keeps the secrets of the settings out of results and answers."""
        return self.approval.redactor


@dataclass(frozen=True, slots=True)
class Agent:
    """What answers: models in order of preference, tools, limits. Shared by all turns.

    Attributes:
        models: The main model first; one for each key where it has several.
        images: Puts pictures into requests.
    """

    models: Sequence[ChatModel]
    tools: ToolRegistry
    settings: AgentSettings
    calls: CallRules
    recovery: Recovery
    max_output_tokens: int
    caching: CachingSettings = field(default_factory=CachingSettings)
    images: Images = field(default_factory=Images)

    def preferring(self, choice: str | None) -> "Agent":
        """Return the agent with the models of a choice first, the others as fallbacks.

        The agent itself where nothing was chosen, or there is no such choice
        (agent/models/factory.py).
        """
        chosen = choices(self.models).get(choice) if choice else None
        if not chosen:
            return self
        others = [model for model in self.models if model not in chosen]
        return replace(self, models=[*chosen, *others])


@dataclass(frozen=True, slots=True)
class TurnPorts:
    """What connects a turn to its surroundings.

    Attributes:
        sink: Shows the growing answer.
        tools: Returns what the turn's tools may use; asked where one is called, since most turns
            call none.
        spending: The budgets that the calls count for.
        on_trouble: Is told of a failure before a wait for the next attempt; None: an answer comes,
            but hardly anything of it.
    """

    journal: TurnJournal
    planner: Planner
    sink: TextSink
    tools: MakesTools
    spending: Spending
    on_trouble: Callable[[ModelError | None], Awaitable[None]]
    conversation: str


@dataclass(slots=True)
class TurnState:
    """Everything that changes during a turn.

    Attributes:
        view: What the model sees; grows at its end, and shrinks when it is compacted.
        own: This turn's messages, its user message first, whether they are in view or not.
        unknown_calls: Side-effect calls that an earlier attempt started and never finished.
        model: What answered last; asked first, since it has the prompt in its cache.
        used_tokens: What the turn's calls read and wrote, those of earlier attempts included.
        started: When this attempt began, on the monotonic clock.
    """

    view: View
    own: list[ChatMessage]
    unknown_calls: frozenset[str] = frozenset()
    iterations: int = field(init=False)
    continuations: int = field(init=False)
    empty_retries: int = 0
    model: ChatModel | None = None
    used_tokens: int = 0
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        # From the records, so that a resumed turn keeps its limits.
        self.iterations = sum(message["role"] == "assistant" for message in self.own)
        self.continuations = sum(_is_continuation(message) for message in self.own)

    def add(self, entries: Sequence[Entry]) -> None:
        """Take note of messages that were recorded, in the order in which they are shown."""
        self.view.extend(entries)
        self.own += [entry.message for entry in entries]

    def partial_text(self) -> str:
        """Return what was recorded so far of an answer that is continued."""
        return partial_text(self.own)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended.

    Attributes:
        message: The last assistant message, not yet recorded; None if there was no text.
        text: What the person gets to read, earlier parts of a continued answer included.
        call: The last one; booked and remembered with the answer.
    """

    outcome: Outcome
    message: ChatMessage | None
    text: str
    call: ModelCall


def partial_text(own: Sequence[ChatMessage]) -> str:
    """Return the recorded parts of an answer that was continued, from a turn's messages."""
    return "".join(text_of(part) for part, after in pairwise(own) if _is_continuation(after))


def _is_continuation(message: ChatMessage) -> bool:
    return message.get("synthetic", False) and message.get("content") == CONTINUE
