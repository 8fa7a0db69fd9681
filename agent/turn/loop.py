"""The agent's turn: call the model and run its tools until it answers.

Read `run_turn` first. The transcript is the turn's memory: every step is recorded before the next
begins, so an interrupted turn resumes from its records. agent/turn/request.py makes the requests.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent.messages import (
    ChatMessage,
    ToolCall,
    assistant_message,
    open_calls,
    text_of,
    tool_message,
    user_message,
)
from agent.models.base import ChatModel, Completion
from agent.ports import ModelCall
from agent.settings import AgentSettings
from agent.tools.execute import run_calls
from agent.turn.request import (
    CONTINUE,
    Agent,
    LoopRequest,
    ModelAnswer,
    TurnPorts,
    is_continuation,
    partial_text,
)
from agent.view.view import Entry, View

Limit = Literal["max_iterations", "budget_exhausted"]
"""The exhausted limit of a turn: its number of calls, or its tokens or time."""
Outcome = (
    Literal["final_text", "partial", "empty", "output_exhausted", "refused", "endless"] | Limit
)
"""How a turn ended: with an answer, one cut by the output limit, one without text, thinking that
used up the output limit, a refusal by the model, an endless answer, or a summary at a limit."""

MAX_CONTINUATIONS = 3
"""Most requests to continue an answer that was cut by the output limit."""
MAX_EMPTY_RETRIES = 1
"""Further calls in a turn if the model answers without text."""

WRAP_UP = (
    "You have reached the limit of this turn. Without calling any tool, say what was"
    " done, what was found, and what is left to do."
)
_WRAP_UP = user_message(WRAP_UP, synthetic=True)
OUTCOME_UNKNOWN = (
    "Error: the process ended while this ran, so its outcome is unknown. It was not run again."
    " Find out what its effect was before you repeat it."
)


@dataclass(slots=True)
class TurnState:
    """The mutable state of a turn.

    Attributes:
        own: This turn's messages, its user message first, in view or not.
        unknown_calls: Side-effect calls that an earlier attempt started but did not finish.
        model: The model that answered last; asked first, since its cache has the prompt.
        used_tokens: Input and output of the turn's calls, including earlier attempts.
        started: Start of this attempt, on the monotonic clock.
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
        self.continuations = sum(is_continuation(message) for message in self.own)

    def add(self, entries: Sequence[Entry]) -> None:
        """Add recorded messages in display order."""
        self.view.extend(entries)
        self.own += [entry.message for entry in entries]


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The result of a turn.

    Attributes:
        message: The last assistant message, not yet recorded; None if it has no text.
        text: The text for the user, including earlier parts of a continued answer.
        call: The last call; booked together with the answer.
    """

    outcome: Outcome
    message: ChatMessage | None
    text: str
    call: ModelCall


async def run_turn(state: TurnState, agent: Agent, ports: TurnPorts) -> TurnResult:
    """Answer the newest user message of the view.

    Intermediate steps are recorded in the journal; the caller commits the final message together
    with its delivery.

    Raises:
        ModelError: No model answered; records remain.
        SpendLimitReached: A budget does not allow the next call; records remain.
        TurnSuspended: A person must answer first; running the turn again resumes it.
        LeaseLost, TurnCancelled: Raised by the journal.
    """
    await resume(state, agent, ports)
    while (limit := limit_reached(state, agent.settings)) is None:
        answer = await call_model(state, agent, ports)
        completion = answer.completion
        calls = completion.message.get("tool_calls")
        if calls:
            # Recorded before they run: the next attempt finds unfinished ones.
            await record(state, ports, answer)
            state.add(await run_tools(calls, agent, ports))
        elif completion.stop_reason == "length" and may_continue(state, completion):
            await record(state, ports, answer)
            await request_rest(state, ports)
        elif is_empty(state, completion) and state.empty_retries < MAX_EMPTY_RETRIES:
            state.empty_retries += 1
            # It leaves no message, but the provider bills it.
            await ports.journal.book([answer.call])
        else:
            return finish(state, agent, answer)
    return await wrap_up(state, agent, ports, limit)


def limit_reached(state: TurnState, settings: AgentSettings) -> Limit | None:
    """Return the exhausted limit of the turn (calls, tokens or time), or None."""
    if state.iterations >= settings.max_iterations:
        return "max_iterations"
    if settings.max_turn_tokens is not None and state.used_tokens >= settings.max_turn_tokens:
        return "budget_exhausted"
    used_s = time.monotonic() - state.started
    if settings.max_turn_s is not None and used_s >= settings.max_turn_s:
        return "budget_exhausted"
    # An earlier attempt has requested the final summary.
    return "budget_exhausted" if state.own[-1] == _WRAP_UP else None


async def resume(state: TurnState, agent: Agent, ports: TurnPorts) -> None:
    """Complete the last step of an earlier attempt, if there was one."""
    await finish_open_group(state, agent, ports)
    if state.own[-1]["role"] == "assistant":
        # A part of an answer was recorded, but not the request for the rest.
        await request_rest(state, ports)


async def finish_open_group(state: TurnState, agent: Agent, ports: TurnPorts) -> None:
    """Complete the tool calls that an earlier attempt left open (invariants 6 and 11).

    Calls that only read or may be repeated run again; a side effect of unknown outcome is reported
    to the model.
    """
    calls = open_calls(state.own)
    for call in calls:
        if call["id"] in state.unknown_calls:
            result = tool_message(call["id"], call["function"]["name"], OUTCOME_UNKNOWN)
            seq = await ports.journal.record_result(result, "unknown")
            state.add([Entry(seq, result)])
    again = [call for call in calls if call["id"] not in state.unknown_calls]
    if again:
        state.add(await run_tools(again, agent, ports))
    if calls:
        # Rendered again: results from multiple attempts are shown in the order of their calls.
        state.view.adopt(state.view.plan)


async def run_tools(calls: Sequence[ToolCall], agent: Agent, ports: TurnPorts) -> list[Entry]:
    """Run calls of the newest message; return their results in order."""
    return await run_calls(calls, agent.tools, await ports.tools(), ports.journal, agent.approval)


async def call_model(
    state: TurnState, agent: Agent, ports: TurnPorts, *, allow_tools: bool = True
) -> ModelAnswer:
    """Make one model request that fits the window, including recovery."""
    state.iterations += 1
    await ports.planner.keep_within(state.view)
    answer = await LoopRequest(state.view, agent, ports, allow_tools).answer(state.model)
    state.model = answer.model
    if usage := answer.call.usage:
        state.used_tokens += usage.prompt_tokens + usage.output_tokens
    return answer


async def record(state: TurnState, ports: TurnPorts, answer: ModelAnswer) -> None:
    """Record an intermediate assistant message, and restart the preview."""
    message = answer.completion.message
    seq = await ports.journal.record_message(message, answer.call)
    state.add([Entry(seq, message)])
    ports.sink.restart()


async def request_rest(state: TurnState, ports: TurnPorts) -> None:
    """Record the request to continue an answer."""
    await ask(state, ports, user_message(CONTINUE, synthetic=True))
    state.continuations += 1


async def ask(state: TurnState, ports: TurnPorts, request: ChatMessage) -> None:
    """Record a request written by Parley itself."""
    seq = await ports.journal.record_message(request)
    state.add([Entry(seq, request)])


async def wrap_up(state: TurnState, agent: Agent, ports: TurnPorts, limit: Limit) -> TurnResult:
    """Use the last call, without tools, to summarise completed and remaining work."""
    if state.own[-1] != _WRAP_UP:
        await ask(state, ports, _WRAP_UP)
    answer = await call_model(state, agent, ports, allow_tools=False)
    return finish(state, agent, answer, reached=limit)


def finish(
    state: TurnState, agent: Agent, answer: ModelAnswer, *, reached: Outcome = "final_text"
) -> TurnResult:
    """Return the result of a turn that ends with this answer."""
    completion = answer.completion
    # Masked again: parts of a continued answer may together form a secret.
    said = text_of(completion.message)
    text = agent.approval.redactor.configured(partial_text(state.own) + said)
    # A call in a turn's last message would never get a result.
    has_calls = "tool_calls" in completion.message
    message = assistant_message(said) if has_calls else completion.message
    return TurnResult(
        outcome=_outcome(completion, text, reached),
        message=message if said.strip() else None,
        text=text,
        call=answer.call,
    )


def may_continue(state: TurnState, completion: Completion) -> bool:
    """Return whether to request the rest of a text; thinking would fill the output again."""
    said = text_of(completion.message).strip()
    return bool(said) and state.continuations < MAX_CONTINUATIONS


def is_empty(state: TurnState, completion: Completion) -> bool:
    """Return whether a normally ended call contains no text."""
    said = partial_text(state.own) + text_of(completion.message)
    return completion.stop_reason == "stop" and not said.strip()


def _outcome(completion: Completion, text: str, reached: Outcome) -> Outcome:
    if completion.stop_reason in {"refused", "endless"}:
        return completion.stop_reason
    cut = completion.stop_reason == "length"
    if not text.strip():
        return "output_exhausted" if cut else "empty"
    return "partial" if cut else reached
