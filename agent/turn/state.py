"""The loop's parts: the agent, a turn's ports, its state, its result."""

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
"""The limit of a turn that is used up: its calls, or its tokens or time."""
Outcome = (
    Literal["final_text", "partial", "empty", "output_exhausted", "refused", "endless"] | Limit
)
"""The end of a turn: an answer, one cut by the output limit, one without text, thinking that used
the output limit up, a refusal of the model, an endless answer, or a summary at a limit."""
CONTINUE = "Continue exactly where you stopped; do not repeat anything."


@dataclass(frozen=True, slots=True)
class CallRules:
    """Rules of tool calls: the length of their results, and the approvals that they need."""

    output: OutputSettings
    approval: ApprovalRules = field(default_factory=ApprovalRules)

    @property
    def redactor(self) -> Redactor:
        """Keeps the secrets of the settings out of results and answers."""
        return self.approval.redactor


@dataclass(frozen=True, slots=True)
class Agent:
    """Models in order of preference (one for each key), tools, limits. Shared by all turns."""

    models: Sequence[ChatModel]
    tools: ToolRegistry
    settings: AgentSettings
    calls: CallRules
    recovery: Recovery
    max_output_tokens: int
    caching: CachingSettings = field(default_factory=CachingSettings)
    images: Images = field(default_factory=Images)

    def preferring(self, choice: str | None) -> "Agent":
        """Put the models of a choice (agent/models/factory.py) first, the others as fallbacks.

        Without a valid choice the agent itself comes back.
        """
        chosen = choices(self.models).get(choice) if choice else None
        if not chosen:
            return self
        others = [model for model in self.models if model not in chosen]
        return replace(self, models=[*chosen, *others])


@dataclass(frozen=True, slots=True)
class TurnPorts:
    """The gateway's side of one turn.

    Attributes:
        sink: Shows the growing answer.
        tools: Returns the context of the turn's tools; called with the first tool call.
        on_trouble: Gets a failure before a wait for the next attempt; None for an answer that
            trickles.
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
        own: This turn's messages, its user message first, whether they are in view or not.
        unknown_calls: Side-effect calls that an earlier attempt started and never finished.
        model: That answered last; asked first, since it has the prompt in its cache.
        used_tokens: Input and output of the turn's calls, of earlier attempts too.
        started: Of this attempt, on the monotonic clock.
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
        """Add recorded messages, in the order of being shown."""
        self.view.extend(entries)
        self.own += [entry.message for entry in entries]

    def partial_text(self) -> str:
        """Return the recorded parts of an answer that is continued."""
        return partial_text(self.own)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The end of a turn.

    Attributes:
        message: The last assistant message, not yet recorded; None without a text.
        text: For the person, earlier parts of a continued answer included.
        call: The last one; booked with the answer.
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
