"""One model request of a turn: its models, images, cache breakpoints and masking.

Each attempt of recovery rebuilds the request (`LoopRequest`), since a fallback has another window,
other markers and another price.

A stored message contains the handle of an image, a request its bytes. They are inserted just before
the call, so transcripts, token counts and the prefix check use the handle. An image that cannot be
shown becomes a label; the text next to it names it. The same applies to an image that a provider
refuses, because every later request would be refused too.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import structlog

from agent.context.planner import Planner
from agent.errors import BadRequest, ModelError
from agent.messages import ChatMessage, Usage, handle_in, pictures_in, sanitise, text_of
from agent.models.base import ChatModel, Completion, ModelRequest, Prefix, TextSink, traced_call
from agent.models.factory import group_by_choice
from agent.models.recovery import Recovery, complete_with_recovery
from agent.money.costs import call_of, failed_call, forecast, lost_call
from agent.ports import ModelCall, Spending, TurnJournal
from agent.prompt_caching import apply_cache_control
from agent.safety.redaction import MASK, Redactor
from agent.settings import AgentSettings, CachingSettings
from agent.tokens import load_beside
from agent.tools.context import ToolContext
from agent.tools.gate import ApprovalRules
from agent.tools.registry import ToolRegistry
from agent.view.view import View

log = structlog.get_logger()

LARGE_TOKENS = 3_000
"""A request with fewer message tokens is not suspected of being too long."""
COUNT_MARGIN = 1.15
"""A provider may count up to this many times Parley's token count."""
LEAST_OUTPUT_TOKENS = 256
SHOWN_CHARS = 4
"""Longest possible beginning of a secret that is shown if no text follows it."""
CONTINUE = "Continue exactly where you stopped; do not repeat anything."
ImageLoader = Callable[[str, int], Awaitable[str | None]]
"""Returns the data URL of an image in this conversation, or None if it is missing."""

MAX_IMAGES = 20
"""Source: Anthropic's vision guide: with more than 20 images each must be smaller."""
LEAP = 10
"""Number of images removed at a time: each removal moves the prefix and loses its cache."""
MAX_REQUEST_CHARS = 20_000_000
"""Most characters of all images in a request. Source: Anthropic's API accepts 32 MB in total."""
REMEMBERED = 4096
"""Most images remembered as accepted by a model."""
REFUSED_FOR_S = 600.0
"""Seconds for which a refused image is omitted; then it is retried, as it may not be the cause."""
UNSEEN = {"type": "text", "text": "[image: it cannot be looked at here]"}


class Images:
    """Tracks the images that each model accepts; shared by all turns. `load` None: show none."""

    def __init__(
        self, load: ImageLoader | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.load = load
        self._now = now
        self._taken: set[tuple[str, int]] = set()
        self._refused: dict[tuple[str, int], float] = {}
        self._newest: dict[tuple[str, str], tuple[frozenset[int], frozenset[int]]] = {}

    async def shown(
        self,
        inside: Sequence[int],
        model: ChatModel,
        conversation: str,
        left_out: Collection[int] = (),
    ) -> dict[int, str]:
        """Return the data URLs of the images that a request shows by id, oldest first.

        They are the newest images `inside` the view, as many as a request may contain, except those
        recently refused by the model. Images leave in batches, so that most requests begin like the
        previous one.
        """
        # A model without vision refuses the whole request, not only the image.
        if not model.facts.vision:
            return {}
        gone = -(-max(0, len(inside) - MAX_IMAGES) // LEAP) * LEAP
        now = self._now()
        refused = {
            key[1] for key, until in self._refused.items() if key[0] == model.label and until > now
        }
        hidden = refused.union(left_out)
        return await self._loaded([it for it in inside[gone:] if it not in hidden], conversation)

    def suspects(self, shown: Iterable[int], model: ChatModel) -> list[list[int]]:
        """Return the images to omit from a refused request, one list per attempt.

        Only images that the model has never accepted: the newer half, then the older half, then
        all.
        """
        new = [each for each in shown if (model.label, each) not in self._taken]
        middle = len(new) // 2
        halves = [new[middle:], new[:middle]] if middle else []
        return [*halves, new] if new else []

    def have_changed(
        self, shown: Collection[int], model: ChatModel, conversation: str, inside: Sequence[int]
    ) -> bool:
        """Return whether old images have left or returned since the model's newest answer.

        Its thoughts are bound to them, as to everything before them.
        """
        before = self._newest.get((model.label, conversation))
        if before is None:
            return False
        shown_then, inside_then = before
        return shown_then.intersection(inside) != inside_then.intersection(shown)

    def note_taken(
        self, shown: Collection[int], model: ChatModel, conversation: str, inside: Sequence[int]
    ) -> None:
        """Record that the model answered a request with these images of the view."""
        if max(len(self._taken), len(self._newest)) >= REMEMBERED:
            self._taken.clear()
            self._newest.clear()
        self._taken.update((model.label, each) for each in shown)
        if inside:
            self._newest[model.label, conversation] = frozenset(shown), frozenset(inside)

    def note_refused(self, left_out: Iterable[int], model: ChatModel) -> None:
        """Record that a request was answered only without these images."""
        now = self._now()
        lately = {key: until for key, until in self._refused.items() if until > now}
        self._refused = lately | {(model.label, each): now + REFUSED_FOR_S for each in left_out}

    async def _loaded(self, wanted: Iterable[int], conversation: str) -> dict[int, str]:
        """Return the data URLs of the newest images that fit; images leave in batches here too."""
        shown: deque[tuple[int, str]] = deque()
        chars = 0
        for attachment in wanted:
            url = await self.load(conversation, attachment) if self.load else None
            if url is None:
                continue
            shown.append((attachment, url))
            chars += len(url)
            if chars > MAX_REQUEST_CHARS:
                while chars > MAX_REQUEST_CHARS // 2 and len(shown) > 1:
                    chars -= len(shown.popleft()[1])
        return dict(shown)


@dataclass(frozen=True, slots=True)
class Agent:
    """Models in order of preference (one per key), tools, limits. Shared by all turns."""

    models: Sequence[ChatModel]
    tools: ToolRegistry
    settings: AgentSettings
    recovery: Recovery
    max_output_tokens: int
    approval: ApprovalRules = field(default_factory=ApprovalRules)
    caching: CachingSettings = field(default_factory=CachingSettings)
    images: Images = field(default_factory=Images)

    def preferring(self, choice: str | None) -> "Agent":
        """Put the models of a choice (agent/models/factory.py) first, the others as fallbacks.

        Returns the agent itself if the choice is invalid.
        """
        chosen = group_by_choice(self.models).get(choice) if choice else None
        if not chosen:
            return self
        others = [model for model in self.models if model not in chosen]
        return replace(self, models=[*chosen, *others])


@dataclass(frozen=True, slots=True)
class TurnPorts:
    """The gateway's side of one turn.

    Attributes:
        tools: Returns the context of the turn's tools; called at the first tool call.
        on_trouble: Receives a failure before the wait for the next attempt; None if an answer
            trickles.
    """

    journal: TurnJournal
    planner: Planner
    sink: TextSink
    tools: Callable[[], Awaitable[ToolContext]]
    spending: Spending
    on_trouble: Callable[[ModelError | None], Awaitable[None]]
    conversation: str


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A completion, its model, and the call to book with the message."""

    completion: Completion
    model: ChatModel
    call: ModelCall


@dataclass(frozen=True, slots=True)
class LoopRequest:
    """One model request of a turn, as an `Attempt` for recovery; `answer` sends it."""

    view: View
    agent: Agent
    ports: TurnPorts
    allow_tools: bool = True

    async def answer(self, preferred: ChatModel | None) -> ModelAnswer:
        """Send the request, with recovery; `preferred` answered last."""
        policy, rests = self.agent.recovery.policy, self.agent.recovery.rests
        models = rests.in_order(self.agent.models, preferred)
        return await complete_with_recovery(self, models, rests, policy)

    async def make(self, model: ChatModel) -> ModelAnswer:
        """Send the request; if malformed, retry up to three times without new images.

        A provider that cannot read an image rejects every request with it as malformed. If it also
        refuses the request without images, they are not the reason.
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
        ports, watch = self.ports, self.ports.planner.watch
        # A fallback, or a chosen model, may have another tokenizer.
        await load_beside(model.name)
        await ports.planner.fit(self.view, model)
        # A failed attempt's text must not precede the next one's.
        ports.sink.restart()
        inside = pictures_in(self.view.messages)
        shown = await self._shown(inside, model, left_out)
        images = self.agent.images
        if images.have_changed(shown, model, ports.conversation, inside):
            # Otherwise signed thinking after them is refused, and new images are blamed.
            await self.repair()
        messages = sanitise(self.view.messages)
        # A repaired list has other positions than the view.
        is_whole = messages is self.view.messages
        sent = watch.take(messages, self.agent.tools.schemas, model)
        tokens = (await ports.planner.measured(self.view)).tokens
        ttl, warm_tokens = self.agent.caching.cache_ttl, watch.most_warm_tokens(model, tokens)
        # Booked if the call ends without an answer.
        expected = lost_call(model, forecast(model, tokens, warm_tokens, ttl))
        seen = with_pictures(messages, shown) if inside else messages
        request = self._request(seen, model, tokens, is_whole=is_whole)
        async with ports.spending.call(expected.cost_usd):
            completion = await self._complete(model, request, expected)
        images.note_taken(shown, model, ports.conversation, inside)
        call = call_of(model, request, completion)
        # Booked even if the turn is cancelled before the message is recorded.
        ports.journal.begin_call(replace(call, purpose="lost"))
        if completion.usage is not None:
            call = self._noted(call, completion.usage, sent)
        return ModelAnswer(completion, model, call)

    async def shrink(self, model: ChatModel, *, suspected: bool = False) -> bool:
        """Compact the view; if nothing can be removed, request a shorter answer once."""
        planner = self.ports.planner
        if await planner.shrink(self.view, model):
            return True
        room = model.context_length - (await planner.measured(self.view)).tokens
        is_less = LEAST_OUTPUT_TOKENS < room < self.agent.max_output_tokens
        return is_less and not suspected and planner.overflows == 1

    async def repair(self) -> bool:
        """Remove the model's thoughts."""
        return await self.ports.planner.repair(self.view)

    async def on_trouble(self, failure: ModelError) -> None:
        """Notify the user if it takes long."""
        await self.ports.on_trouble(failure)

    async def _is_large(self) -> bool:
        """Return whether the view is or was large and a request was answered before."""
        planner, view = self.ports.planner, self.view
        if planner.overflows:
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
            room //= 4 if self.ports.planner.overflows else 1
            output = max(room, LEAST_OUTPUT_TOKENS)
        return ModelRequest(
            messages=mark_breakpoints(
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

    async def _complete(
        self, model: ChatModel, request: ModelRequest, expected: ModelCall
    ) -> Completion:
        journal = self.ports.journal
        # Stays if the turn is cancelled meanwhile: the provider bills the input.
        journal.begin_call(expected)
        redactor = self.agent.approval.redactor
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
        # Before it is shown, recorded or sent again.
        masked = masked_message(completion.message, redactor)
        is_same = masked is completion.message
        return completion if is_same else replace(completion, message=masked)

    def _noted(self, call: ModelCall, usage: Usage, sent: Prefix) -> ModelCall:
        """Update meter and prefix check from a report; return the call with their values."""
        planner = self.ports.planner
        planner.note(usage, self.view)
        # A request that forbids calls has another setting before its messages.
        if self.allow_tools:
            prefix = planner.watch.note(sent, usage)
        else:
            prefix = planner.watch.note_apart(sent)
        return replace(call, ratio=planner.meter.ratio, prefix=prefix)


def partial_text(own: Sequence[ChatMessage]) -> str:
    """Return the recorded parts of a continued answer, from a turn's messages."""
    return "".join(text_of(part) for part, after in pairwise(own) if is_continuation(after))


def is_continuation(message: ChatMessage) -> bool:
    """Return whether a message is Parley's request for the rest of an answer."""
    return message.get("synthetic", False) and message.get("content") == CONTINUE


def mark_breakpoints(
    messages: Sequence[ChatMessage],
    model: ChatModel,
    caching: CachingSettings,
    settled: Sequence[int] = (),
    *,
    moved: bool = False,
) -> list[ChatMessage]:
    """Mark breakpoints for the model's prompt cache, if it supports any.

    For `settled`, see `agent.view.view.View`. A view that was `moved` is marked where the
    compaction left it unchanged, since it no longer contains the end of the previous request.
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


def with_pictures(messages: Sequence[ChatMessage], shown: Mapping[int, str]) -> list[ChatMessage]:
    """Replace handles by image bytes, or by labels for images that are not shown.

    Messages without images are returned as the same objects.
    """
    return [_filled(each, shown) if pictures_in([each]) else each for each in messages]


def _filled(message: ChatMessage, shown: Mapping[int, str]) -> ChatMessage:
    parts: list[Any] = [*(message["content"] or ())]
    for n, part in enumerate(parts):
        attachment = handle_in(part)
        if attachment is not None:
            url = shown.get(attachment)
            parts[n] = {"type": "image_url", "image_url": {"url": url}} if url else UNSEEN
    return cast("ChatMessage", {**message, "content": parts})


def masked_message(message: ChatMessage, redactor: Redactor) -> ChatMessage:
    """Mask configured secrets in a model's message; return the same message if it has none.

    Values that look like credentials stay: an answer may be about them. Provider-specific fields
    are signed or opaque and cannot be changed: one that contains a secret is dropped.
    """
    masked = redactor.value(message, redactor.configured)
    if masked == message:
        return message
    if masked.get("opaque") != message.get("opaque"):
        del masked["opaque"]
    return cast("ChatMessage", masked)


class MaskedSink:
    """`agent.models.base.TextSink`: shows a growing answer without configured secrets.

    A secret may arrive in several pieces: a possible beginning is held back until the next piece.
    It may begin in `before`, the text of the call that this one continues, which is not shown
    again.
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
        """Discard the pushed text."""
        self._held, self._known = self._before, len(self._before)
        self._sink.restart()

    def close(self) -> None:
        """Show the rest, since no text follows."""
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
