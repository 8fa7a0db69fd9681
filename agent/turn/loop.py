"""The agent's turn: call the model, run its tools, until there is an answer.

Read `run_turn` first. The transcript is the turn's memory: every step is recorded before the next
begins, so an interrupted turn goes on from its records. Each attempt of recovery builds its request
(`LoopRequest`) again: a fallback has another window, other marks and another price.
"""

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import structlog

from agent.errors import BadRequest, ModelError
from agent.messages import (
    ChatMessage,
    ToolCall,
    assistant_message,
    open_calls,
    pictures_in,
    sanitise,
    text_of,
    tool_message,
    user_message,
)
from agent.models.base import ChatModel, Completion, ModelRequest, TextSink, traced_call
from agent.models.prefix import Prefix
from agent.models.recovery import complete_with_recovery
from agent.money.costs import call_of, failed_call, forecast, lost_call
from agent.ports import ModelCall
from agent.prompt_caching import apply_cache_control
from agent.safety.redaction import MASK, Redactor
from agent.settings import AgentSettings, CachingSettings
from agent.tokens import load_beside
from agent.tools.execute import run_calls
from agent.turn.pictures import with_pictures
from agent.turn.state import (
    CONTINUE,
    Agent,
    Limit,
    Outcome,
    TurnPorts,
    TurnResult,
    TurnState,
    partial_text,
)
from agent.usage import Usage
from agent.view.view import Entry, View

log = structlog.get_logger()

MAX_CONTINUATIONS = 3
"""Of an answer that hit the output limit."""
MAX_EMPTY_RETRIES = 1
"""Further calls of a turn whose model answers without a text."""
LARGE_TOKENS = 3_000
"""A request with fewer in its messages is not suspected to be too long."""
COUNT_MARGIN = 1.15
"""A provider may count so many times the tokens that Parley counts."""
LEAST_OUTPUT_TOKENS = 256
SHOWN_CHARS = 4
"""Shown of a possible beginning of a secret if nothing follows it."""

WRAP_UP = (
    "You have reached the limit of this turn. Without calling any tool, say what was"
    " done, what was found, and what is left to do."
)
_WRAP_UP = user_message(WRAP_UP, synthetic=True)
OUTCOME_UNKNOWN = (
    "Error: the process ended while this ran, so its outcome is unknown. It was not run again."
    " Find out what its effect was before you repeat it."
)


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A completion, its model, and the call to book with the message."""

    completion: Completion
    model: ChatModel
    call: ModelCall


async def run_turn(state: TurnState, agent: Agent, ports: TurnPorts) -> TurnResult:
    """Answer the newest user message of the view.

    Intermediate steps are recorded through the journal; the caller commits the final message
    together with its delivery.

    Raises:
        ModelError: No model answered; records stay.
        SpendLimitReached: A budget does not allow the next call; records stay.
        TurnSuspended: A person must answer first; the turn goes on when it is run again.
        LeaseLost, TurnCancelled: From the journal.
    """
    await resume(state, agent, ports)
    while (limit := limit_reached(state, agent.settings)) is None:
        answer = await call_model(state, agent, ports)
        completion = answer.completion
        calls = completion.message.get("tool_calls")
        if calls:
            # Recorded before they run: the next attempt finds those left open.
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
    """Return the limit of the turn that is used up: calls, tokens or time."""
    if state.iterations >= settings.max_iterations:
        return "max_iterations"
    if settings.max_turn_tokens is not None and state.used_tokens >= settings.max_turn_tokens:
        return "budget_exhausted"
    used_s = time.monotonic() - state.started
    if settings.max_turn_s is not None and used_s >= settings.max_turn_s:
        return "budget_exhausted"
    # An earlier attempt has asked for the final summary.
    return "budget_exhausted" if state.own[-1] == _WRAP_UP else None


async def resume(state: TurnState, agent: Agent, ports: TurnPorts) -> None:
    """Complete the last step of an earlier attempt, if there was one."""
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
        # Rendered again: results of several attempts are shown in the order of their calls.
        state.view.adopt(state.view.plan)


async def run_tools(calls: Sequence[ToolCall], agent: Agent, ports: TurnPorts) -> list[Entry]:
    """Run calls of the newest message; returns their results in order."""
    rules, context = agent.calls, await ports.tools()
    return await run_calls(calls, agent.tools, context, ports.journal, rules.output, rules.approval)


async def call_model(
    state: TurnState, agent: Agent, ports: TurnPorts, *, allow_tools: bool = True
) -> ModelAnswer:
    """Make one model request within the window, with all that recovery may try."""
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
    """Record the request to continue."""
    await ask(state, ports, user_message(CONTINUE, synthetic=True))
    state.continuations += 1


async def ask(state: TurnState, ports: TurnPorts, request: ChatMessage) -> None:
    """Record a request of Parley itself."""
    seq = await ports.journal.record_message(request)
    state.add([Entry(seq, request)])


async def wrap_up(state: TurnState, agent: Agent, ports: TurnPorts, limit: Limit) -> TurnResult:
    """Use the last call, without tools, for a summary of the work and the rest."""
    if state.own[-1] != _WRAP_UP:
        await ask(state, ports, _WRAP_UP)
    answer = await call_model(state, agent, ports, allow_tools=False)
    return finish(state, agent, answer, reached=limit)


def finish(
    state: TurnState, agent: Agent, answer: ModelAnswer, *, reached: Outcome = "final_text"
) -> TurnResult:
    """Return the result of a turn that ends with this answer."""
    completion = answer.completion
    # Once more: parts of a continued answer may form a secret together.
    said = text_of(completion.message)
    text = agent.calls.redactor.configured(state.partial_text() + said)
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
    """Whether to ask for the rest of a text; thinking would use up the output limit again."""
    said = text_of(completion.message).strip()
    return bool(said) and state.continuations < MAX_CONTINUATIONS


def is_empty(state: TurnState, completion: Completion) -> bool:
    """Whether a call that ended well said nothing."""
    said = state.partial_text() + text_of(completion.message)
    return completion.stop_reason == "stop" and not said.strip()


def _outcome(completion: Completion, text: str, reached: Outcome) -> Outcome:
    if completion.stop_reason in {"refused", "endless"}:
        return completion.stop_reason
    cut = completion.stop_reason == "length"
    if not text.strip():
        return "output_exhausted" if cut else "empty"
    return "partial" if cut else reached


def marked(
    messages: Sequence[ChatMessage],
    model: ChatModel,
    caching: CachingSettings,
    settled: Sequence[int] = (),
    *,
    moved: bool = False,
) -> list[ChatMessage]:
    """Mark breakpoints for the model's prompt cache, if it takes any.

    For `settled` see `agent.view.view.View`. A view that was `moved` is marked where the compaction
    left it unchanged: the end of the request before is no longer in it.
    """
    if model.cache_layout is None:
        return list(messages)
    return apply_cache_control(
        messages,
        ttl=caching.cache_ttl,
        strategy="anchored" if moved else caching.strategy,
        native=model.cache_layout == "native",
        settled=settled,
    )


@dataclass(frozen=True, slots=True)
class LoopRequest:
    """One model request of a turn, as recovery works on it (`Attempt`); `answer` makes it."""

    view: View
    agent: Agent
    ports: TurnPorts
    allow_tools: bool = True

    async def answer(self, preferred: ChatModel | None) -> ModelAnswer:
        """Make the request, with all that recovery may try; `preferred` answered last.

        Raises:
            ModelError: No model answered.
            SpendLimitReached: A budget does not allow the call.
        """
        policy, rests = self.agent.recovery.policy, self.agent.recovery.rests
        models = rests.in_order(self.agent.models, preferred)
        return await complete_with_recovery(self, models, rests, policy)

    async def make(self, model: ChatModel) -> ModelAnswer:
        """Make the request; if it is malformed, up to three times more without new pictures.

        A provider that cannot read a picture calls every request with it malformed. If it refuses
        the request without any of them as well, they are not the reason.
        """
        try:
            return await self._make(model)
        except BadRequest as exc:
            images = self.agent.images
            shown = await self._shown(pictures_in(self.view.messages), model)
            for suspects in images.suspects(shown, model):
                count = len(suspects)
                log.warning("images_left_out", model=model.label, count=count, reason=str(exc))
                with suppress(BadRequest):
                    answer = await self._make(model, suspects)
                    images.note_refused(suspects, model)
                    return answer
            exc.is_unexplained = exc.is_unexplained and await self._is_large()
            raise

    async def _make(self, model: ChatModel, left_out: Collection[int] = ()) -> ModelAnswer:
        ports = self.ports
        # A fallback, or a chosen model, may have another tokenizer.
        await load_beside(model.name)
        await ports.planner.fit(self.view, model)
        # The text of a failed attempt must not precede the next one's.
        ports.sink.restart()
        inside = pictures_in(self.view.messages)
        shown = await self._shown(inside, model, left_out)
        images = self.agent.images
        if images.have_changed(shown, model, ports.conversation, inside):
            # Signed thinking behind them would be refused, and new pictures blamed for it.
            await self.repair()
        messages = sanitise(self.view.messages)
        # A list that had to be fixed has other places than the view.
        is_whole = messages is self.view.messages
        sent = ports.planner.watch.take(messages, self.agent.tools.schemas, model)
        tokens = (await ports.planner.measured(self.view)).tokens
        expected = self._expected(model, tokens)
        seen = with_pictures(messages, shown) if inside else messages
        request = self._request(seen, model, tokens, is_whole=is_whole)
        async with ports.spending.call(expected.cost_usd):
            completion = await self._complete(model, request, expected)
        images.note_taken(shown, model, ports.conversation, inside)
        call = call_of(model, request, completion)
        # Booked too if the turn is cancelled before the message is recorded.
        ports.journal.begin_call(replace(call, purpose="lost"))
        if completion.usage is not None:
            call = self._noted(call, completion.usage, sent)
        return ModelAnswer(completion, model, call)

    async def shrink(self, model: ChatModel, *, suspected: bool = False) -> bool:
        """Compact the view; if nothing can be left out of it, ask for a shorter answer once."""
        planner = self.ports.planner
        if await planner.shrink(self.view, model):
            return True
        room = model.context_length - (await planner.measured(self.view)).tokens
        is_less = LEAST_OUTPUT_TOKENS < room < self.agent.max_output_tokens
        return is_less and not suspected and planner.turn.overflows == 1

    async def repair(self) -> bool:
        """Leave out the model's thoughts."""
        return await self.ports.planner.repair(self.view)

    async def on_trouble(self, failure: ModelError) -> None:
        """Notify the user if it takes long."""
        await self.ports.on_trouble(failure)

    async def _is_large(self) -> bool:
        """Whether the view is or was large, and a request of the conversation was answered."""
        planner, view = self.ports.planner, self.view
        if planner.turn.overflows:
            return True
        own = (await planner.measured(view)).tokens - planner.meter.fixed_tokens(view.messages[0])
        return own >= LARGE_TOKENS and any(each["role"] == "assistant" for each in view.messages)

    async def _shown(
        self, inside: Sequence[int], model: ChatModel, left_out: Collection[int] = ()
    ) -> dict[int, str]:
        return await self.agent.images.shown(inside, model, self.ports.conversation, left_out)

    def _request(
        self, messages: list[ChatMessage], model: ChatModel, tokens: int, *, is_whole: bool
    ) -> ModelRequest:
        output = self.agent.max_output_tokens
        if (room := model.context_length - int(tokens * COUNT_MARGIN)) < output:
            # A server that refused the request may count more tokens than Parley.
            room //= 4 if self.ports.planner.turn.overflows else 1
            output = max(room, LEAST_OUTPUT_TOKENS)
        return ModelRequest(
            messages=marked(
                messages,
                model,
                self.agent.caching,
                self.view.settled if is_whole else (),
                moved=is_whole and self.view.moved,
            ),
            tools=self.agent.tools.schemas,
            max_output_tokens=output,
            allow_tools=self.allow_tools,
            conversation=self.ports.conversation,
            on_trickle=partial(self.ports.on_trouble, None),
        )

    def _expected(self, model: ChatModel, tokens: int) -> ModelCall:
        """Return the call at its least cost, to be booked if it ends without an answer."""
        watch = self.ports.planner.watch
        warm_tokens = watch.most_warm_tokens(model, tokens)
        return lost_call(model, forecast(model, tokens, warm_tokens, self.agent.caching.cache_ttl))

    async def _complete(
        self, model: ChatModel, request: ModelRequest, expected: ModelCall
    ) -> Completion:
        journal = self.ports.journal
        # Stays if the turn is cancelled meanwhile: the provider bills the input.
        journal.begin_call(expected)
        redactor = self.agent.calls.redactor
        sink = MaskedSink(self.ports.sink, redactor, partial_text(self.view.messages[-2:]))
        try:
            completion = await traced_call(model, request, sink)
        except ModelError as exc:
            lost = failed_call(model, exc, expected.usage)
            journal.begin_call(lost)
            await journal.book([lost] if lost else [])
            # Providers repeat their input; this goes into the log and the turn's row.
            exc.args = (redactor.text(str(exc)),)
            raise
        finally:
            sink.close()
        # Before it is shown, recorded, or sent again.
        masked = masked_message(completion.message, redactor)
        is_same = masked is completion.message
        return completion if is_same else replace(completion, message=masked)

    def _noted(self, call: ModelCall, usage: Usage, sent: Prefix) -> ModelCall:
        """Have meter and watch learn from a report; returns the call with their values."""
        planner = self.ports.planner
        planner.note(usage, self.view)
        # A request that forbids calls has another setting before its messages.
        if self.allow_tools:
            prefix = planner.watch.note(sent, usage)
        else:
            prefix = planner.watch.note_apart(sent)
        return replace(call, ratio=planner.meter.ratio, prefix=prefix)


def masked_message(message: ChatMessage, redactor: Redactor) -> ChatMessage:
    """Mask configured secrets in a model's message; the message itself comes back without any.

    Values shaped like credentials stay: an answer may be about them. Fields for the provider alone
    are signed or opaque and cannot be changed: with a secret in them they go as a whole.
    """
    masked = redactor.value(message, redactor.configured)
    if masked == message:
        return message
    if masked.get("opaque") != message.get("opaque"):
        del masked["opaque"]
    return cast("ChatMessage", masked)


class MaskedSink:
    """`agent.models.base.TextSink`: shows a growing answer without configured secrets.

    A secret may come in several pieces: a possible beginning is held back until the next piece. It
    may be in the text `before`, of the call that this one continues, which is not shown again.
    """

    def __init__(self, sink: TextSink, redactor: Redactor, before: str = "") -> None:
        self._sink = sink
        self._redactor = redactor
        self._before = self._held = before[redactor.settled_chars(before) :]
        self._known = len(self._held)

    def push(self, delta: str) -> None:
        """Append visible text."""
        text = self._held + delta
        shown = self._redactor.settled_chars(text)
        self._held = text[shown:]
        if shown:
            self._show(text[:shown])

    def restart(self) -> None:
        """Forget what was pushed."""
        self._held, self._known = self._before, len(self._before)
        self._sink.restart()

    def close(self) -> None:
        """Show the rest: nothing follows it."""
        held, self._held = self._held, ""
        masked = self._redactor.configured(held, is_piece=True)
        if len("".join(held.split())) <= SHOWN_CHARS or masked != held:
            self._show(held)
        elif len(held) > self._known:
            self._sink.push(MASK)

    def _show(self, text: str) -> None:
        masked = self._redactor.configured(text, is_piece=True)
        new = masked[self._known :] if masked == text else masked
        self._known = max(0, self._known - len(text))
        if new:
            self._sink.push(new)
