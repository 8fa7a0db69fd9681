"""One request of the loop: made for the model that is asked, watched, paid for, and its answer.

Each attempt of recovery builds the request anew, since a fallback takes another window, other marks
and has another price.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import structlog

from agent.context.phases.sanitise import sanitise
from agent.errors import BadRequest, ModelError
from agent.messages import ChatMessage, pictures_in
from agent.models import observed
from agent.models.base import ChatModel, Completion, ModelRequest, TextSink
from agent.models.prefix import Prefix
from agent.models.recovery import complete_with_recovery
from agent.money.costs import call_of, failed_call, forecast, lost_call
from agent.ports import ModelCall
from agent.prompt_caching import apply_cache_control
from agent.safety.redaction import MASK, Redactor
from agent.settings import CachingSettings
from agent.tokens.estimate import load_beside
from agent.turn.pictures import with_pictures
from agent.turn.state import Agent, TurnPorts, partial_text
from agent.usage import Usage
from agent.view.view import View

log = structlog.get_logger()

LARGE_TOKENS = 3_000
"""A request whose messages have fewer is not suspected to be too long."""
COUNT_MARGIN = 1.15
"""A provider may count so many times the tokens that Parley counts."""
LEAST_OUTPUT_TOKENS = 256
SHOWN_CHARS = 4
"""Of what may be the beginning of a secret so much is shown where nothing follows it."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What a request led to.

    Attributes:
        call: As it is to be booked with the message.
    """

    completion: Completion
    model: ChatModel
    call: ModelCall


def marked(
    messages: Sequence[ChatMessage],
    model: ChatModel,
    caching: CachingSettings,
    settled: Sequence[int] = (),
    *,
    moved: bool = False,
) -> list[ChatMessage]:
    """Return the messages with breakpoints for the model's prompt cache, where it takes any.

    `settled` are the places up to which older messages were rewritten; see `agent.view.view.View`.
    A view that was `moved` is marked where the compaction left it as it was: the end of the request
    before is no longer in it.
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
        """Make the request as it is now; up to three times more without new ones of its pictures.

        A provider that cannot read one of them calls the request malformed, and would do so ever
        after. Where it refuses the request without any of them as well, they are not the reason.
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
        # A fallback, or a chosen model, may be counted by another tokenizer.
        await load_beside(model.name)
        await ports.planner.fit(self.view, model)
        # What a failed attempt has shown must not stand before the next one's text.
        ports.sink.restart()
        inside = pictures_in(self.view.messages)
        shown = await self._shown(inside, model, left_out)
        images = self.agent.images
        if images.have_changed(shown, model, ports.conversation, inside):
            # Signed thinking behind them would be refused, and the new pictures be blamed for it.
            await self.repair()
        messages = sanitise(self.view.messages)
        # The places of the view are not those of a list that had to be fixed.
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
        # Booked all the same if the turn is cancelled before the message is recorded.
        ports.journal.begin_call(replace(call, purpose="lost"))
        if completion.usage is not None:
            call = self._noted(call, completion.usage, sent, completion.cache_miss_reason)
        return ModelAnswer(completion, model, call)

    async def shrink(self, model: ChatModel, *, suspected: bool = False) -> bool:
        """Compact the view; where nothing can be left out of it, ask for a shorter answer once."""
        smaller = await self.ports.planner.shrink(self.view, model)
        return smaller or (not suspected and await self._can_ask_for_less(model))

    async def repair(self) -> bool:
        """Leave out what the model thought."""
        return await self.ports.planner.repair(self.view)

    async def on_trouble(self, failure: ModelError) -> None:
        """Tell the user if it takes long."""
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
        self,
        messages: list[ChatMessage],
        model: ChatModel,
        tokens: int,
        *,
        is_whole: bool,
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

    async def _can_ask_for_less(self, model: ChatModel) -> bool:
        """Whether a shorter answer may make the refused request fit; once in a turn."""
        room = model.context_length - (await self.ports.planner.measured(self.view)).tokens
        is_first = self.ports.planner.turn.overflows == 1
        return is_first and LEAST_OUTPUT_TOKENS < room < self.agent.max_output_tokens

    def _expected(self, model: ChatModel, tokens: int) -> ModelCall:
        """Return what the call will cost at least: booked where it ends without an answer."""
        watch = self.ports.planner.watch
        warm_tokens = watch.most_warm_tokens(model, tokens)
        return lost_call(model, forecast(model, tokens, warm_tokens, self.agent.caching.cache_ttl))

    async def _complete(
        self, model: ChatModel, request: ModelRequest, expected: ModelCall
    ) -> Completion:
        journal = self.ports.journal
        # Stays where the turn is cancelled meanwhile: the provider bills what it read.
        journal.begin_call(expected)
        redactor = self.agent.calls.redactor
        sink = MaskedSink(self.ports.sink, redactor, partial_text(self.view.messages[-2:]))
        try:
            completion = await observed.complete(model, request, sink)
        except ModelError as exc:
            lost = failed_call(model, exc, expected.usage)
            journal.begin_call(lost)
            await journal.book([lost] if lost else [])
            # Providers repeat what they were sent; this goes into the log and the turn's row.
            exc.args = (redactor.text(str(exc)),)
            raise
        finally:
            sink.close()
        # Before it is shown, recorded, or sent again.
        masked = masked_message(completion.message, redactor)
        is_same = masked is completion.message
        return completion if is_same else replace(completion, message=masked)

    def _noted(
        self, call: ModelCall, usage: Usage, sent: Prefix, miss_reason: str | None
    ) -> ModelCall:
        """Have meter and watch learn from a report; returns the call with what they know."""
        planner = self.ports.planner
        planner.note(usage, self.view)
        # A request that forbids calls has another setting before its messages: it stands apart.
        if self.allow_tools:
            prefix = planner.watch.note(sent, usage, miss_reason)
        else:
            prefix = planner.watch.note_apart(sent)
        return replace(call, ratio=planner.meter.ratio, prefix=prefix)


def masked_message(message: ChatMessage, redactor: Redactor) -> ChatMessage:
    """Return a model's message without configured secrets; itself where it holds none.

    Only configured values are masked, not what is shaped like a credential: an answer may be about
    such things.

    Fields for the provider alone are signed or opaque, so they cannot be changed: they go as a
    whole where a secret stands in them.
    """
    masked = redactor.value(message, redactor.configured)
    if masked == message:
        return message
    if masked.get("opaque") != message.get("opaque"):
        del masked["opaque"]
    return cast("ChatMessage", masked)


class MaskedSink:
    """`agent.models.base.TextSink`: shows a growing answer without configured secrets.

    A secret may come in several pieces: what may be the beginning of one is held back until the
    next piece tells.

    Args:
        before: What was said in the call that this one goes on with: it is not shown here, but a
            secret may have begun there.
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
        """Show the rest: nothing follows it any more."""
        held, self._held = self._held, ""
        masked = self._redactor.configured(held, is_piece=True)
        if len("".join(held.split())) <= SHOWN_CHARS or masked != held:
            self._show(held)
        elif len(held) > self._known:
            self._sink.push(MASK)

    def _show(self, text: str) -> None:
        """Push what is not known yet of a text, masked."""
        masked = self._redactor.configured(text, is_piece=True)
        new = masked[self._known :] if masked == text else masked
        self._known = max(0, self._known - len(text))
        if new:
            self._sink.push(new)
