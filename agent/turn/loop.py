"""The agent's turn: call the model, run its tools, until there is an answer.

Read `run_turn` first. The transcript is the turn's memory: every step is recorded before the next
begins, so a turn that was interrupted goes on where its records end.
"""

import time
from collections.abc import Sequence

from agent.messages import (
    ChatMessage,
    ToolCall,
    assistant_message,
    open_calls,
    text_of,
    tool_message,
    user_message,
)
from agent.models.base import Completion
from agent.settings import AgentSettings
from agent.tools.execute import run_calls
from agent.turn.request import LoopRequest, ModelAnswer
from agent.turn.state import CONTINUE, Agent, Limit, Outcome, TurnPorts, TurnResult, TurnState
from agent.usage import Usage
from agent.view.view import Entry

MAX_CONTINUATIONS = 3
"""How often an answer that hit the output limit is continued."""
MAX_EMPTY_RETRIES = 1
"""How often a model that said nothing is asked again in one turn."""

WRAP_UP = (
    "You have reached the limit of this turn. Without calling any tool, say what was"
    " done, what was found, and what is left to do."
)
_WRAP_UP = user_message(WRAP_UP, synthetic=True)
OUTCOME_UNKNOWN = (
    "Error: the process ended while this ran, so its outcome is unknown. It was not run again."
    " Find out what its effect was before you repeat it."
)


async def run_turn(state: TurnState, agent: Agent, ports: TurnPorts) -> TurnResult:
    """Answer the newest user message of the view.

    Intermediate steps are recorded through the journal; the final message is left to the caller,
    who commits it together with its delivery.

    Raises:
        ModelError: No model answered; what was recorded stays.
        SpendLimitReached: A budget does not allow the next call; the same holds.
        TurnSuspended: A person must answer first; the turn goes on when it is run again.
        LeaseLost, TurnCancelled: From the journal.
    """
    await resume(state, agent, ports)
    while (limit := limit_reached(state, agent.settings)) is None:
        answer = await call_model(state, agent, ports)
        completion = answer.completion
        calls = completion.message.get("tool_calls")
        if calls:
            # Recorded before they run: what an attempt leaves open, the next one finds.
            await record(state, ports, answer)
            state.add(await run_tools(calls, agent, ports))
        elif completion.stop_reason == "length" and may_continue(state, completion):
            await continue_answer(state, ports, answer)
        elif is_empty(state, completion) and state.empty_retries < MAX_EMPTY_RETRIES:
            state.empty_retries += 1
            # No message is recorded for it, but the provider bills it.
            await ports.journal.book([answer.call])
        else:
            return finish(state, agent, answer)
    return await wrap_up(state, agent, ports, limit)


def limit_reached(state: TurnState, settings: AgentSettings) -> Limit | None:
    """Return which limit of a turn is used up: the calls, or the budget of tokens and time."""
    if state.iterations >= settings.max_iterations:
        return "max_iterations"
    if settings.max_turn_tokens is not None and state.used_tokens >= settings.max_turn_tokens:
        return "budget_exhausted"
    used_s = time.monotonic() - state.started
    if settings.max_turn_s is not None and used_s >= settings.max_turn_s:
        return "budget_exhausted"
    # The summary was asked for by an attempt that ended before it was there.
    return "budget_exhausted" if state.own[-1] == _WRAP_UP else None


async def resume(state: TurnState, agent: Agent, ports: TurnPorts) -> None:
    """Complete what an earlier attempt left half done; nothing for a fresh turn."""
    await finish_open_group(state, agent, ports)
    if state.own[-1]["role"] == "assistant":
        # A part of an answer was recorded, the request for the rest of it was not.
        await request_rest(state, ports)


async def finish_open_group(state: TurnState, agent: Agent, ports: TurnPorts) -> None:
    """Complete the tool calls that an earlier attempt left open (invariants 6 and 11).

    Calls that only read, or may be repeated, run again; a side effect of unknown outcome is
    reported to the model.
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
        # Rendered anew: results of several attempts are shown in the order of their calls.
        state.view.adopt(state.view.plan)


async def run_tools(calls: Sequence[ToolCall], agent: Agent, ports: TurnPorts) -> list[Entry]:
    """Run calls of the newest message; returns their results in order."""
    return await run_calls(
        calls,
        agent.tools,
        await ports.tools(),
        ports.journal,
        agent.calls.output,
        agent.calls.approval,
    )


async def call_model(
    state: TurnState, agent: Agent, ports: TurnPorts, *, allow_tools: bool = True
) -> ModelAnswer:
    """Make one model request within the window, with all that recovery may try."""
    state.iterations += 1
    await ports.planner.keep_within(state.view)
    answer = await LoopRequest(state.view, agent, ports, allow_tools).answer(state.model)
    state.model = answer.model
    state.used_tokens += _tokens_of(answer.call.usage)
    return answer


def _tokens_of(usage: Usage | None) -> int:
    return usage.prompt_tokens + usage.output_tokens if usage else 0


async def record(state: TurnState, ports: TurnPorts, answer: ModelAnswer) -> None:
    """Record an intermediate assistant message, and have the preview begin anew."""
    message = answer.completion.message
    seq = await ports.journal.record_message(message, answer.call)
    state.add([Entry(seq, message)])
    # What is shown so far is no answer: the next text begins anew.
    ports.sink.restart()


async def continue_answer(state: TurnState, ports: TurnPorts, answer: ModelAnswer) -> None:
    """Record the part that was cut by the output limit, and ask for the rest."""
    await record(state, ports, answer)
    await request_rest(state, ports)


async def request_rest(state: TurnState, ports: TurnPorts) -> None:
    """Record the request to continue."""
    await ask(state, ports, user_message(CONTINUE, synthetic=True))
    state.continuations += 1


async def ask(state: TurnState, ports: TurnPorts, request: ChatMessage) -> None:
    """Record a request that Parley itself makes."""
    seq = await ports.journal.record_message(request)
    state.add([Entry(seq, request)])


async def wrap_up(state: TurnState, agent: Agent, ports: TurnPorts, limit: Limit) -> TurnResult:
    """Use the last call, without tools, for a summary of what was done and what is left."""
    if state.own[-1] != _WRAP_UP:
        await ask(state, ports, _WRAP_UP)
    answer = await call_model(state, agent, ports, allow_tools=False)
    return finish(state, agent, answer, reached=limit)


def finish(
    state: TurnState, agent: Agent, answer: ModelAnswer, *, reached: Outcome = "final_text"
) -> TurnResult:
    """Return the result of a turn that ends with this answer."""
    completion = answer.completion
    # Once more: the parts of a continued answer may make up a secret together.
    text = agent.calls.redactor.configured(state.partial_text() + text_of(completion.message))
    return TurnResult(
        outcome=_outcome(completion, text, reached),
        message=without_calls(completion.message) if text_of(completion.message).strip() else None,
        text=text,
        call=answer.call,
    )


def may_continue(state: TurnState, completion: Completion) -> bool:
    """Whether to ask for the rest of a text; thinking would use up the output limit again."""
    said = text_of(completion.message).strip()
    return bool(said) and state.continuations < MAX_CONTINUATIONS


def is_empty(state: TurnState, completion: Completion) -> bool:
    """Whether a call that ended well said nothing."""
    said = state.partial_text() + text_of(completion.message)
    return completion.stop_reason == "stop" and not said.strip()


def without_calls(message: ChatMessage) -> ChatMessage:
    """Return a message that ends a turn: a call in it would never get a result."""
    if "tool_calls" not in message:
        return message
    return assistant_message(text_of(message))


def _outcome(completion: Completion, text: str, reached: Outcome) -> Outcome:
    if completion.stop_reason in {"refused", "endless"}:
        return completion.stop_reason
    cut = completion.stop_reason == "length"
    if not text.strip():
        return "output_exhausted" if cut else "empty"
    return "partial" if cut else reached
