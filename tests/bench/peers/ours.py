"""Parley's compression and prompt caching for `../shared/peerbench`.

Lists are compacted by the library function and measured by the product's meter; requests go the
product's way to the wire: fixed, marked, and built for the provider. What a view (agent/view)
tells the marking of its own is told by the lists here: where a compaction ended rewriting.
"""

from typing import Any

from peers.base import CTX, TAIL, TRIGGER, Peer
from wireblocks import TOOLS, anthropic_blocks, openai_blocks

from agent.context.meter import TokenMeter
from agent.library import compact_messages
from agent.messages import Usage, sanitise
from agent.models.anthropic import wire as anthropic_wire
from agent.models.base import ModelRequest
from agent.models.openai import wire as openai_wire
from agent.prompt_caching import apply_cache_control
from agent.tokens import estimate_messages, estimate_tokens
from agent.view.view import MARKER, Entry, View, ViewPlan

MODEL = "claude-sonnet-4-5"
"""A model with the window of the harness; its tokenizer is not the harness's cl100k."""
OPENAI_MODEL = "gpt-4"
"""For the estimates, which the harness compares with cl100k."""


class Adapter(Peer):
    """One adapter for both profiles: Parley ships what `aligned` asks for."""

    name = "ours"
    strategy = "anchored"

    def new_engine(self) -> TokenMeter:
        """Return the state of a session: its meter."""
        self.rewritten: list[Any] = []
        return TokenMeter(MODEL)

    def compress(self, engine: TokenMeter, native: list[Any]) -> list[Any]:
        """One pass, the estimate of the whole list included."""
        result = compact_messages(
            native,
            context_length=CTX,
            threshold=TRIGGER / CTX,
            target_ratio=TAIL / TRIGGER,
            summarise=lambda prompt, _max_tokens: self.stub(prompt),
            model=MODEL,
        )
        if result.level == "none":
            return native
        self.rewritten += last_rewritten(native, result.messages)
        return result.messages

    def should_compress(self, engine: TokenMeter, native: list[Any]) -> bool:
        """Whether the measured view has reached the trigger."""
        return engine.measure(view_of(native)).tokens >= TRIGGER

    def after_compress(self, engine: TokenMeter, native: list[Any]) -> None:
        """Forget the size of the view that is no more."""
        engine.forget_report()

    def after_call(self, engine: TokenMeter, native: list[Any], real_tokens: int) -> None:
        """Take note of what the provider reported for the request."""
        del self.rewritten[:-1]
        view = view_of(native)
        engine.note(Usage(input_tokens=real_tokens), view, view.entries[-1].seq)

    def wire_blocks(self, native: list[Any], layout: str) -> list[tuple[str, bool]]:
        """Return the request as the provider gets it; the tools are the harness's."""
        marked = apply_cache_control(
            sanitise(native),
            strategy=self.strategy,
            native=layout == "native",
            settled=places_of(self.rewritten, native),
        )
        request = ModelRequest(marked)
        blocks: list[tuple[str, bool]]
        if layout == "native":
            body = anthropic_wire.request_body(request, MODEL)
            blocks = anthropic_blocks(TOOLS, body["system"], body["messages"])
        else:
            name = f"anthropic/{MODEL}"
            body = openai_wire.request_body(request, name, layout="envelope")
            blocks = openai_blocks(body["messages"], TOOLS)
        return blocks

    def estimate_messages(self, native: list[Any]) -> int:
        """Count with the encoding of an OpenAI model."""
        return estimate_messages(native, OPENAI_MODEL)

    def estimate_text(self, text: str) -> int:
        """Count with the encoding of an OpenAI model."""
        return estimate_tokens(text, OPENAI_MODEL)


def last_rewritten(before: list[Any], after: list[Any]) -> list[Any]:
    """Return the last message that a compaction shortened, if any."""
    known = set(map(id, before))
    rewritten = [message for message in after[1:] if id(message) not in known]
    return [each for each in rewritten if not str(each["content"]).startswith(MARKER)][-1:]


def places_of(messages: list[Any], native: list[Any]) -> list[int]:
    """Return where these very messages stand in a list."""
    wanted = set(map(id, messages))
    return [n for n, message in enumerate(native) if id(message) in wanted]


def view_of(native: list[Any]) -> View:
    """Return a list, its system message first, as the view of a turn."""
    entries = [Entry(n, message) for n, message in enumerate(native[1:], start=1)]
    return View(native[0]["content"], ViewPlan(), entries)
