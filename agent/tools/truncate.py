"""Shorten long texts: a tool result to the view's limits, an excerpt around a query's words."""

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal

from agent.settings import OutputSettings

Direction = Literal["head", "tail", "head_tail"]

_LINES_FOR_BOTH_ENDS = 3  # one of each end and the mark


@dataclass(frozen=True, slots=True)
class Observation:
    """A tool result as the view shows it, with its sizes before and after the cut.

    Attributes:
        preview: The whole text if it fits the limits.
        kept_lines: Number of lines shown at least partly, without the mark.
        direction: The part shown; "head" if the limit of two lines leaves no room for both ends.
    """

    preview: str
    original_lines: int
    original_bytes: int
    kept_lines: int
    kept_bytes: int
    direction: Direction

    @property
    def truncated(self) -> bool:
        """Whether part of the text was cut."""
        return self.kept_bytes < self.original_bytes


def truncate(text: str, limits: OutputSettings) -> Observation:
    r"""Return `text` within both limits, with a mark in place of the part left out.

    Every line ends with "\n", including the last. The mark counts towards both limits. Characters
    are
    never split.
    """
    raw = text.encode("utf-8", "replace")
    lines = raw.count(b"\n") + (not raw.endswith(b"\n") and raw != b"")
    whole = Observation(text, lines, len(raw), lines, len(raw), limits.direction)
    if lines <= limits.max_lines and len(raw) <= limits.max_bytes:
        return whole
    return _cut(raw, whole, limits)


def _cut(raw: bytes, whole: Observation, limits: OutputSettings) -> Observation:
    two_ends = limits.direction == "head_tail"
    direction: Direction = (
        "head" if two_ends and limits.max_lines < _LINES_FOR_BOTH_ENDS else limits.direction
    )
    # The mark shares the only line.
    joint, room = ("\n", limits.max_lines - 1) if limits.max_lines > 1 else (" ", 1)
    longest_mark = _mark(whole.original_lines, whole.original_bytes)
    budget = limits.max_bytes - len(longest_mark) - 2
    body = raw.removesuffix(b"\n")
    tail_lines, tail_bytes = {
        "head": (0, 0),
        "tail": (room, budget),
        "head_tail": (room // 2, budget // 2),
    }[direction]
    head_lines, head_bytes = room - tail_lines, budget - tail_bytes
    first = b"\n".join(body[:head_bytes].split(b"\n", head_lines)[:head_lines])
    last = b"\n".join(body[-tail_bytes:].rsplit(b"\n", tail_lines)[-tail_lines:])
    head, tail = first.decode("utf-8", "ignore"), last.decode("utf-8", "ignore")
    tail = tail if tail_lines else ""
    shown_lines = sum(part.count("\n") + 1 for part in (head, tail) if part)
    # Both ends may show parts of the same line.
    lines = min(shown_lines, whole.original_lines)
    size = len(head.encode()) + len(tail.encode())
    mark = _mark(whole.original_lines - lines, whole.original_bytes - size)
    preview = joint.join(part for part in (head, mark, tail) if part)
    return Observation(preview, whole.original_lines, whole.original_bytes, lines, size, direction)


def _mark(lines: int, size: int) -> str:
    """Return the mark; never longer than a mark for larger numbers."""
    left_out = f"{size:,} bytes" if lines <= 0 else f"{lines:,} lines, {size:,} bytes"
    return f"[... {left_out} left out ...]"


class ObservationTruncator:
    """Shortens the outputs of an application's own tools, and stores them in full in files.

    The gateway stores outputs in its database instead (`tools.output`).
    """

    def __init__(
        self,
        max_lines: int = 2000,
        max_bytes: int = 51_200,
        truncate_direction: Direction = "head",
        output_dir: str | Path = "tool-output",
    ) -> None:
        """Set the limits, at least 1 line and 256 bytes, and the directory of the files."""
        self.limits = OutputSettings(
            max_lines=max_lines, max_bytes=max_bytes, direction=truncate_direction
        )
        self.output_dir = Path(output_dir)

    def truncate(
        self, tool_name: str, output: str, metadata: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the part of an output for a model; store a cut output in full in a file.

        The file is JSON with `tool`, `output` and `metadata`, readable only by its owner. Equal
        outputs share a file. Raises an OSError if the file cannot be written.

        Returns:
            A dict with HelloAgents' keys: `truncated`, `preview`, `full_output_path` (None if not
            cut) and `stats`: `original_lines`, `original_bytes`, `time_ms`; for a cut output also
            `direction`, `kept_lines` and `kept_bytes`.
        """
        began = time.perf_counter()
        found = truncate(output, self.limits)
        stats = asdict(found)
        preview = stats.pop("preview")
        if not found.truncated:
            stats = {name: stats[name] for name in ("original_lines", "original_bytes")}
        path = self._kept(tool_name, output, metadata or {}) if found.truncated else None
        stats["time_ms"] = int((time.perf_counter() - began) * 1000)
        return {
            "truncated": found.truncated,
            "preview": preview,
            "full_output_path": None if path is None else str(path),
            "stats": stats,
        }

    def _kept(self, tool_name: str, output: str, metadata: Mapping[str, Any]) -> Path:
        # In ASCII, which also preserves a lone surrogate.
        text = json.dumps({"tool": tool_name, "output": output, "metadata": dict(metadata)})
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
        name = _NO_NAME.sub("_", tool_name)[:_NAME_CHARS]
        path = self.output_dir / f"{name}-{digest}.json"
        if not path.exists():
            self.output_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Atomic: readers never see a partial file.
            with NamedTemporaryFile("w", dir=self.output_dir, delete=False) as draft:
                draft.write(text)
            Path(draft.name).replace(path)
        return path


_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NAME_CHARS = 40
_DIGEST_CHARS = 16

LEAD_CHARS = 80
"""Characters shown before the word that an excerpt is cut around."""
STEM_CHARS = 5
"""Length of a word's beginning used to match its other forms."""
_UNSPACED = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Thai and Lao, kana, Han, Hangul: words are written without spaces or fused together."""
_WORD = re.compile(rf"[{_UNSPACED}]{{2}}|[^\W{_UNSPACED}]+")
MARK = "…"
_CUT_SHARE = 0.2
"""Share of an end that may be dropped so that it starts with a whole word."""
_WORD_BEGINS = re.compile(r"(?<=\s)\S")


def place_of(query: str, text: str) -> int:
    """Return the position in a text of a query's longest word, else of a word's beginning, else 0.

    Short words of a question occur everywhere; the beginning of a word matches its other forms.
    """
    folded = text.casefold()
    words = sorted(_WORD.findall(query.casefold()), key=len, reverse=True)
    beginnings = [word[:STEM_CHARS] for word in words if len(word) > STEM_CHARS]
    return next((at for word in (*words, *beginnings) if (at := folded.find(word)) >= 0), 0)


def excerpt(text: str, most_chars: int, query: str) -> str:
    """Return a text, or if it is too long, an excerpt around a word of the query, with marks."""
    if len(text) <= most_chars:
        return text
    start = max(0, min(place_of(query, text) - LEAD_CHARS, len(text) - most_chars))
    end = start + most_chars
    left = f" [+{len(text) - end:,} characters]" if end < len(text) else ""
    return f"{'[…] ' if start else ''}{text[start:end]}{left}"


def end_of(text: str, most_chars: int) -> str:
    """Return a text, or if it is too long, its end from a whole word on, after a mark."""
    if len(text) <= most_chars:
        return text
    start = len(text) - most_chars + len(MARK)
    found = _WORD_BEGINS.search(text, start, start + int(most_chars * _CUT_SHARE))
    return MARK + text[found.start() if found else start :]
