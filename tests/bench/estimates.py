"""Token estimates beside what was billed, and what they cost.

Anchored: the meter follows a real session from report to report, and each prompt is measured just
before its own report arrives. Cold: the first billed prompt, and the estimate of all that came
after it with k = 1. The recorded sessions do not hold their system prompts, so the first report
of each segment is given to the meter, which cannot learn from it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from agent.context.meter import ReportedUsage, TokenMeter
from agent.messages import ChatMessage, FunctionCall, ToolCall, Usage, tool_message, user_message
from agent.tokens import estimate_message, estimate_tokens
from agent.view.view import Entry, View, ViewPlan
from tests.bench.figures import Figure, percentile
from tests.support.shared import SHARED

SESSIONS = ("before-compaction", "large-session")
TEXTS = {
    "English": "The quick brown fox, 42 of them; jumps over (the) lazy dog.\n",
    "tab-indented code": "\tif (ready) {\n\t\tawait store.commit(plan);\n\t}\n",
    "Chinese": "网关把每条消息先写入数据库,然后才确认;压缩只改变视图。",
}
LONG_BYTES = 10_000_000
SHORT_MESSAGES = 10_000


@dataclass(frozen=True, slots=True)
class Step:
    """A message of a session; answers have the model and what was billed."""

    message: ChatMessage
    model: str = ""
    usage: Usage | None = None


@dataclass(slots=True)
class Followed:
    """How far off the meter was at each billed call, as a share of the billed prompt.

    Attributes:
        unlearned: The calls before k had its first sample; not among `anchored`.
        update_ms: What measuring took each time.
    """

    anchored: list[float] = field(default_factory=list)
    unlearned: list[float] = field(default_factory=list)
    update_ms: list[float] = field(default_factory=list)


def measure() -> Iterator[Figure]:
    """Yield the accuracy on the billed sessions, then the speed."""
    if SHARED is not None:
        for name in SESSIONS:
            path = SHARED / "pi" / f"{name}.jsonl"
            yield from _accuracy(name, follow(path), cold_errors(path))
    yield from _speed()


def follow(path: Path) -> Followed:
    """Return what the meter said at each billed call of a session but the first."""
    followed = Followed()
    ratio = 1.0
    for steps in segments(path):
        view = View("", ViewPlan(), [])
        meter: TokenMeter | None = None
        for seq, step in enumerate(steps, 1):
            if step.usage is not None and meter is None:
                meter = TokenMeter(step.model, ratio=ratio, report=_report(step.usage, seq))
            elif step.usage is not None and meter is not None:
                _check(meter, view, step.usage, followed)
                meter.note(step.usage, view, seq)
            view.extend([Entry(seq, step.message)])
        ratio = meter.ratio if meter else ratio
    return followed


def cold_errors(path: Path) -> list[float]:
    """Return the error at each billed call before the session's first compaction."""
    errors: list[float] = []
    first = added = 0
    model = ""
    for step in segments(path)[0]:
        if step.usage is not None:
            first = first or step.usage.prompt_tokens
            errors.append(abs((first + added) / step.usage.prompt_tokens - 1))
            model = step.model
        if first:
            added += estimate_message(step.message, model)
    return errors


def segments(path: Path) -> list[list[Step]]:
    """Return the messages of a pi session, split where it was compacted.

    Answers that were cut off are left out: what was billed shows that they were not sent back.
    """
    found: list[list[Step]] = [[]]
    for line in path.read_text("utf-8").split("\n"):
        item = orjson.loads(line) if line else {}
        if item.get("type") == "compaction":
            found.append([])
        elif item.get("type") == "message" and _is_sent(item["message"]):
            found[-1].append(_step(item["message"]))
    return found


def _is_sent(item: dict[str, Any]) -> bool:
    return item["role"] != "assistant" or item["stopReason"] in {"stop", "toolUse"}


def _step(item: dict[str, Any]) -> Step:
    match item["role"]:
        case "toolResult":
            name, text = item["toolName"], _texts(item)
            return Step(tool_message(item["toolCallId"], name, text))
        case "assistant":
            return Step(_answer(item), item["model"], _usage(item))
        case "bashExecution":
            return Step(user_message(f"Ran `{item['command']}`\n{item['output']}"))
    return Step(user_message(_texts(item)))


def _texts(item: dict[str, Any]) -> str:
    return "\n".join(part["text"] for part in item["content"] if part["type"] == "text")


def _answer(item: dict[str, Any]) -> ChatMessage:
    message = ChatMessage(role="assistant", content=_texts(item))
    calls = [_call(part) for part in item["content"] if part["type"] == "toolCall"]
    if calls:
        message["tool_calls"] = calls
    if thinking := [part for part in item["content"] if part["type"] == "thinking"]:
        message["opaque"] = {"anthropic": thinking}
    return message


def _call(part: dict[str, Any]) -> ToolCall:
    function = FunctionCall(name=part["name"], arguments=orjson.dumps(part["arguments"]).decode())
    return ToolCall(id=part["id"], type="function", function=function)


def _usage(item: dict[str, Any]) -> Usage:
    billed = item["usage"]
    return Usage(billed["input"], billed["output"], billed["cacheRead"], billed["cacheWrite"])


def _report(usage: Usage, seq: int) -> ReportedUsage:
    return ReportedUsage(usage.prompt_tokens, usage.output_tokens, seq)


def _check(meter: TokenMeter, view: View, usage: Usage, followed: Followed) -> None:
    started = time.perf_counter()
    tokens = meter.measure(view).tokens
    followed.update_ms.append((time.perf_counter() - started) * 1e3)
    error = abs(tokens / usage.prompt_tokens - 1)
    (followed.unlearned if meter.ratio == 1.0 else followed.anchored).append(error)


def _accuracy(name: str, followed: Followed, cold: list[float]) -> Iterator[Figure]:
    anchored = followed.anchored
    yield Figure(f"{name}: calls measured", len(anchored) + len(followed.unlearned), "")
    yield Figure(f"{name}: anchored, p50", percentile(anchored, 0.5) * 100, "%", at_most=0.05)
    yield Figure(f"{name}: anchored, p95", percentile(anchored, 0.95) * 100, "%", at_most=0.25)
    yield Figure(f"{name}: anchored, max", max(anchored) * 100, "%", at_most=6)
    yield Figure(f"{name}: before k was learned, max", max(followed.unlearned) * 100, "%")
    yield Figure(f"{name}: cold, median", percentile(cold, 0.5) * 100, "%", at_most=12)
    yield Figure(f"{name}: cold, p95", percentile(cold, 0.95) * 100, "%")
    update_ms = followed.update_ms
    yield Figure(f"{name}: update, mean", sum(update_ms) / len(update_ms), "ms", at_most=0.1)
    yield Figure(f"{name}: update, p99", percentile(update_ms, 0.99), "ms")


def _speed() -> Iterator[Figure]:
    for name, text in TEXTS.items():
        long = text * (LONG_BYTES // len(text.encode()))
        taken_s = _best_s(partial(estimate_tokens, long))
        yield Figure(f"estimate, {name}", LONG_BYTES / 1e6 / taken_s, "MB/s", at_least=20)
    short = [user_message(f"How is order {n}? Please tell me soon.") for n in range(SHORT_MESSAGES)]
    yield Figure("10,000 short messages", _best_s(partial(estimate_tokens, short)) * 1e3, "ms")


def _best_s(run: Callable[[], object]) -> float:
    """Return CPU seconds of the fastest of five runs."""
    taken: list[float] = []
    for _ in range(5):
        started = time.process_time()
        run()
        taken.append(time.process_time() - started)
    return min(taken)
