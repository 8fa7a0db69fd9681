"""Plays a tool loop through the real path of a release, with a summary model; prints the bill.

Run by the section `economy` in the folder of a release: it uses only what 0.5 has, too. The last
line of its output is JSON: what the requests and the summaries took, in tokens.

    python loop_player.py WRITER FILE       WRITER: "main", or a model of the table
"""

import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

# The release that is played stands in the working directory.
sys.path.insert(0, str(Path.cwd()))

from typing_extensions import override

from agent.context.summary_model import Summariser
from agent.messages import Usage, assistant_message, text_of
from agent.models.anthropic.wire import request_body
from agent.models.base import ChatModel, Completion, ModelRequest, TextSink, estimate_usage
from agent.models.catalog import facts_of
from agent.money.cache_simulator import blocks_of
from agent.prompt_caching import CacheLayout
from agent.settings import FactsSettings
from agent.tokens import estimate_tokens
from gateway import wiring
from gateway.replay import player, recordings
from gateway.settings.tree import Settings

WINDOW_TOKENS = 200_000
MODEL = "claude-sonnet-4-5"
SUMMARY_TOKENS = 2_000
HEADINGS = "## Goal\nAs below.\n## Progress\n{told}\n## Critical Context\nAs above."


@dataclass(slots=True)
class Bill:
    """What summaries took, by model; and the gateway that is played, once it is there."""

    summaries: dict[str, Usage] = field(default_factory=dict)
    gateways: list[Any] = field(default_factory=list)

    def note(self, name: str, done: Completion) -> Completion:
        """Take note of a summary."""
        assert done.usage is not None
        self.summaries[name] = self.summaries.get(name, Usage()) + done.usage
        return done

    @property
    def preparations(self) -> Any:
        """What writes summaries in the background."""
        return self.gateways[0].beside.preparations


BILL = Bill()
# 0.5 has a model that stops its gateway now and then, and knows more of a conversation.
PLAYED: Any = getattr(player, "StoppingModel", recordings.RecordedModel)


def summary_of(request: ModelRequest) -> Completion:
    """Return some 2,000 tokens of the prompt's own lines, in the form of a summary."""
    told: list[str] = []
    text = text_of(request.messages[0]).partition("BEGIN>>\n")[2] or text_of(request.messages[-2])
    for line in text.splitlines():
        if estimate_tokens("\n".join(told)) > min(SUMMARY_TOKENS, request.max_output_tokens // 2):
            break
        told.append("- " + line[:200].strip("#<> "))
    answer = assistant_message(HEADINGS.format(told="\n".join(told) or "None."))
    return Completion(answer, "stop", estimate_usage(request, answer), "writer")


class Main(PLAYED):  # type: ignore[misc]
    """The model that is played; writes summaries behind its own requests where it is asked to."""

    @override
    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        if not request.conversation:
            return BILL.note(self.facts.name, summary_of(request))
        if request.messages[-1].get("synthetic"):
            return BILL.note(self.facts.name, self._read_from_cache(request))
        # Steps are seconds apart: what is written in the background is there by then.
        known = BILL.preparations._known
        while known:
            await next(iter(known.values())).ended.wait()
        return await super().complete(request, sink)

    def _read_from_cache(self, request: ModelRequest) -> Completion:
        done = summary_of(request)
        count = partial(estimate_tokens, model=self.facts.name)
        blocks = blocks_of(request_body(request, self.facts.name), count)
        if PLAYED is recordings.RecordedModel:
            talk = self._talks[request.conversation]
            usage = talk.cache.bill(blocks, talk.now_s)
        else:
            account = self._accounts[request.conversation]
            at_s = max(account.asked_s.values(), default=0.0)
            usage = account.caches[account.placings[0]].bill(blocks, at_s)
        assert done.usage is not None
        return replace(done, usage=usage + Usage(output_tokens=done.usage.output_tokens))


class Writer:
    """A model of its own that writes summaries."""

    provider = "played"
    cache_layout: CacheLayout | None = None
    context_length = WINDOW_TOKENS

    def __init__(self, name: str) -> None:
        self.name = self.label = name
        self.facts = facts_of(name, FactsSettings())

    async def complete(self, request: ModelRequest, _sink: TextSink) -> Completion:
        """Write one."""
        return BILL.note(self.name, summary_of(request))

    async def look_up(self) -> None:
        """There is nobody to ask."""

    async def close(self) -> None:
        """Nothing to give back."""


async def play(writer: str, file: Path) -> dict[str, Any]:
    """Play a recording."""
    [recording] = recordings.load_recordings(file)

    def build_summariser(_settings: object, main: Any, *_more: object) -> Summariser:
        # 0.5 hands over the main model, later releases the agent.
        model = getattr(main, "models", [main])[0]
        models: list[ChatModel] = [model if writer == "main" else Writer(writer)]
        return Summariser(models, 60.0)

    setattr(wiring, "build_summariser", build_summariser)  # noqa: B010 - another release's
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.model_validate({
            "home": folder,
            "model": {"name": MODEL, "context_length": WINDOW_TOKENS},
            "queue": {"debounce_ms": 0},
        })
        async with _playing(settings, recording) as stage:
            BILL.gateways.append(getattr(stage, "house", stage).gateway)
            ahead = asyncio.create_task(BILL.preparations.run())
            result = await stage.play(0, recording)
            ahead.cancel()
    is_new = hasattr(result, "bill")
    bill = result.bill if is_new else result.billed.bills[0]
    compactions = result.compactions if is_new else result.timeline.compactions
    return {
        "asked": _tokens(bill.tally.billed),
        "summaries": {name: _tokens(usage) for name, usage in BILL.summaries.items()},
        "compactions": len(compactions),
        "problems": [result.problem] if result.problem else [],
    }


def _playing(settings: Settings, recording: Any) -> Any:
    made: Any = player
    if hasattr(made, "Stage"):
        return made.playing(made.Stage(settings, [recording], "none"))
    return made.playing(settings, [recording])


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "input": usage.input_tokens,
        "read": usage.cache_read_tokens,
        "write": usage.cache_write_5m_tokens,
        "output": usage.output_tokens,
    }


if __name__ == "__main__":
    setattr(player, PLAYED.__name__, Main)  # another release's
    setattr(recordings.RecordedModel, "provider", "played")  # noqa: B010
    print(json.dumps(asyncio.run(play(sys.argv[1], Path(sys.argv[2])))), flush=True)
