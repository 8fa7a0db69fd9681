"""What models really answered: the texts of the recorded conversations."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson


def real_answers(data: Path) -> list[str]:
    """Return the different answers of all recordings, in their order."""
    texts = [*_pi(data / "pi"), *_tau_bench(data / "tau-bench"), *_swe_agent(data / "swe-agent")]
    return list(dict.fromkeys(text for text in texts if text.strip()))


def longest_answers(data: Path, count: int = 300) -> list[str]:
    """Return the longest answers; they have the most formatting."""
    return sorted(real_answers(data), key=len)[-count:]


def _pi(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text("utf-8").split("\n"):
            item: dict[str, Any] = orjson.loads(line) if line else {"type": ""}
            if item["type"] == "message" and item["message"]["role"] == "assistant":
                yield _text(item["message"]["content"])


def _tau_bench(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.json")):
        for dialogue in orjson.loads(path.read_bytes()):
            yield from _answers(dialogue["traj"])


def _swe_agent(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.traj")):
        yield from _answers(orjson.loads(path.read_bytes())["history"])


def _answers(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        if message["role"] == "assistant":
            yield _text(message["content"])


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if part.get("type") == "text")
    return content or ""
