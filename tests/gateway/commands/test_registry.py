"""The slash commands: how they are recognised and what they answer."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context_engine import Level
from agent.ports import Compaction
from agent.view import Summary, ViewPlan
from gateway.commands import registry
from gateway.commands.registry import (
    ALIASES,
    ANSWERING,
    BYPASSING,
    DESCRIPTIONS,
    TOPIC_CHARS,
    URGENT,
    StatusFacts,
)
from gateway.storage.reports.history import Status
from gateway.storage.reports.usage import Context, ContextFill
from tests.support.storage import compaction

MODEL = StatusFacts("claude-test", 200_000, 100_000, "compressor", 900)
IDLE = Status(3, 9, 50_000, 1234, 0, turn_running=False, last_outcome="max_iterations")
STANDING = ContextFill(9, 2, "What is it? #2", Context(50_000, "reported"), 1)


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_each_command_is_recognised(name: str) -> None:
    """Alone, addressed to the bot, with words behind it, with blanks around it."""
    for text in (f"/{name}", f"/{name}@parley_bot", f"  /{name}\n", f"/{name} now, please\nthanks"):
        assert registry.parse(text) == name
    assert registry.parse(f"/{name.capitalize()}") == name


@pytest.mark.parametrize(
    ("text", "behind"),
    [("/new", ""), ("/new ", ""), ("/new@bot  Hi\nyou ", "Hi\nyou"), ("no command", "")],
)
def test_what_stands_behind_a_command(text: str, behind: str) -> None:
    """The rest of the text, without the blanks around it."""
    assert registry.argument(text) == behind


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "stop",
        "/",
        "//stop",
        "/stopp",
        "/stop-now",
        "/usr/bin",
        "/stop!",
        "say /stop",
        "/ stop",
    ],
)
def test_anything_else_is_a_message(text: str) -> None:
    """A word that is no command goes to the agent."""
    assert registry.parse(text) is None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("/stauts", "stauts"),
        ("/foo bar\nbaz", "foo"),
        ("/stop-now", "stop-now"),
        ("/status", None),
        ("/compact", None),
        ("/usr/bin", None),
        ("/usr/bin is full", None),
        ("/", None),
        ("/ stop", None),
        ("//stop", None),
        ("/stop!", None),
        ("/5 of them", None),
        ("/foo@other_bot", None),
        ("/" + "x" * 33, None),
    ],
)
def test_what_looks_like_a_command_and_is_none(text: str, word: str | None) -> None:
    """A single word behind the slash; paths and other texts are messages."""
    assert registry.unknown(text) == word


@pytest.mark.parametrize(
    ("word", "meant"),
    [("stauts", "status"), ("STAUTS", "status"), ("hepl", "help"), ("foo", None), ("x`y", None)],
)
def test_an_unknown_command_is_answered_with_the_nearest(word: str, meant: str | None) -> None:
    """Where there is one; the word cannot break the markup."""
    text = registry.unknown_text(word)
    assert (f"Did you mean `/{meant}`?" in text) == (meant is not None)
    assert text.startswith(f"I know no command `/{word.replace('`', chr(39))}`.")


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_is_its_command(alias: str, name: str) -> None:
    """With what stands behind it; `/start` comes from Telegram by itself, also with a payload."""
    assert registry.parse(f"/{alias}") == name
    assert registry.parse(f"/{alias} ref_123") == name
    assert alias not in DESCRIPTIONS


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    """Every text is a known command or a message."""
    name = registry.parse(text)
    assert name is None or (name in DESCRIPTIONS and text.strip().startswith("/"))


def test_what_bypasses_the_queue() -> None:
    """`/new`, `/retry`, `/compress` and `/model` keep their place in the order."""
    assert {"stop", "status", "usage", "insights", "help", *ANSWERING} == BYPASSING
    assert set(DESCRIPTIONS) - BYPASSING == {"new", "retry", "compress", "model"}


@pytest.mark.parametrize(("name", "description"), DESCRIPTIONS.items())
def test_commands_fit_into_telegrams_menu(name: str, description: str) -> None:
    """Names of 1 to 32 small letters, descriptions of 1 to 256 characters."""
    assert re.fullmatch("[a-z]{1,32}", name)
    assert 1 <= len(description) <= 256


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("/compress", ""),
        ("/compress  the\nschema ", "the schema"),
        ("/compact the schema", "the schema"),
        ("/compress " + "x" * 10_000, "x" * TOPIC_CHARS),
    ],
)
def test_the_topic_of_compress(text: str, topic: str) -> None:
    """One line of limited length: it goes into the prompt of the summary."""
    assert registry.topic(text) == topic


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("/pair", ""),
        ("/pair list", "list"),
        (" /Pair@my_bot  approve ABCD2345 ", "approve ABCD2345"),
        ("/pairs", None),
        ("pair list", None),
        ("/new pair", None),
    ],
)
def test_what_stands_behind_pair(text: str, argument: str | None) -> None:
    """It is a command for owners alone: the parser of the others does not know it."""
    assert registry.pair_argument(text) == argument
    assert registry.parse("/pair list") is None
    assert "pair" not in DESCRIPTIONS


def test_help_tells_an_owner_more() -> None:
    """One line, behind the others."""
    assert registry.help_text(to_owner=True).startswith(registry.help_text())
    assert "`/pair`" in registry.help_text(to_owner=True)
    assert "pair" not in registry.help_text()


def test_some_commands_have_no_limit() -> None:
    """They must work when everything else is too much."""
    assert {"stop", "status"} == URGENT
    assert URGENT < BYPASSING


def test_help_lists_every_command() -> None:
    """With what it does, one line each."""
    lines = registry.help_text().splitlines()
    for name, what in DESCRIPTIONS.items():
        assert f"- `/{name}`: {what}" in lines


def test_the_status_of_an_idle_conversation() -> None:
    """Readable figures, and how the last turn ended."""
    assert registry.status_text(IDLE, STANDING, MODEL).splitlines() == [
        "- **Conversation**: 3, session 9",
        "- **Title**: `What is it? #2`",
        "- **Model**: claude-test",
        "- **Context**: 50,000 of 200,000 tokens (25%), reported",
        "- **Compression**: from 100,000 tokens on (engine compressor); 1 compaction so far",
        "- **Messages**: 1,234 so far",
        "- **State**: idle, 0 messages queued",
        "- **Last turn**: max iterations",
    ]


@pytest.mark.parametrize(
    ("answered_by", "told"),
    [
        (None, "claude-test"),
        ("claude-test", "claude-test"),
        ("gpt-4", "claude-test (last answer by gpt-4)"),
    ],
)
def test_a_fallback_that_answered_last_is_named(answered_by: str | None, told: str) -> None:
    """Beside the model that will be asked first."""
    standing = replace(STANDING, answered_by=answered_by)
    assert f"- **Model**: {told}\n" in registry.status_text(IDLE, standing, MODEL)


def test_a_prompt_that_leaves_little_room_is_told() -> None:
    """From half of the threshold on; of the window where nothing is compacted."""
    narrow = replace(MODEL, fixed_tokens=5_000, threshold_tokens=8_000)
    told = "- **Prompt and tools**: 5,000 of 8,000 tokens, which leaves little room\n"
    assert told in registry.status_text(IDLE, STANDING, narrow)
    assert registry.crowding_text(replace(narrow, threshold_tokens=10_000)) is None
    assert registry.crowding_text(replace(narrow, threshold_tokens=None)) is None


def test_the_status_while_a_turn_runs() -> None:
    """The outcome of the turn before is of no interest now."""
    busy = Status(3, 9, 1, 1, 2, turn_running=True, last_outcome="final_text")
    text = registry.status_text(busy, STANDING, MODEL)
    assert "working on an answer, 2 messages queued" in text
    assert "Last turn" not in text


def test_the_status_before_the_first_answer() -> None:
    """The context is estimated; a conversation without a title has no line for it."""
    fresh = Status(3, 9, None, 0, 1, turn_running=False, last_outcome=None)
    standing = ContextFill(9, 1, "", Context(1_234, "estimated"), 0)
    text = registry.status_text(fresh, standing, MODEL)
    assert "1,234 of 200,000 tokens (1%), estimated" in text
    assert "0 compactions so far" in text
    assert "Title" not in text
    assert "Last turn" not in text


def test_compression_that_is_switched_off_has_no_threshold() -> None:
    """The engine is named all the same."""
    off = replace(MODEL, threshold_tokens=100_000, engine="rounds", compresses=False)
    text = registry.status_text(IDLE, STANDING, off)
    assert "- **Compression**: switched off (engine rounds)" in text


def test_an_engine_that_tells_no_threshold_is_not_switched_off() -> None:
    """A plugin decides by itself, and need not say from where on."""
    silent = replace(MODEL, threshold_tokens=None, engine="newest")
    text = registry.status_text(IDLE, STANDING, silent)
    assert "- **Compression**: when the engine newest asks for it; 1 compaction so far" in text


def test_a_title_cannot_break_the_markup() -> None:
    """It is what a person wrote, shown as it is."""
    text = registry.status_text(IDLE, replace(STANDING, title="**`x`**"), MODEL)
    assert "- **Title**: `**'x'**`" in text


def done(level: Level = "summary", source: str = "model", **changes: object) -> Compaction:
    """Return a compaction with a new summary."""
    plan = ViewPlan(
        summaries=(Summary("S", 2, 9, source="model" if source == "model" else "extract"),)
    )
    figures = {"level": level, "retained_share": 0.95, "summary_model": "small-1", **changes}
    return compaction(plan, **figures)


def test_compress_tells_real_figures() -> None:
    """Messages and tokens before and after, who wrote the summary, and the topic."""
    assert registry.compress_text(done(), "the `schema`") == (
        "Condensed: 400 → 30 messages, 100,000 → 20,000 tokens (estimated)."
        " The earlier turns are now a summary by small-1. Topic: `the 'schema'`."
        " Every message stays on record."
    )


def test_compress_without_a_topic_names_none() -> None:
    """There is nothing to show back."""
    assert "Topic" not in registry.compress_text(done())


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("none", ""),
        ("prune", "Old tool results are shortened."),
        ("short_summary", "It had to be a short one."),
        ("clip_tail", "Long messages are cut"),
        ("clip_newest", "Even your newest message is cut"),
    ],
)
def test_compress_tells_how_far_it_had_to_go(level: Level, told: str) -> None:
    """In plain words."""
    assert told in registry.compress_text(done(level))


def test_a_summary_without_a_model_says_why() -> None:
    """Nothing that a provider said is shown."""
    failed = done("extract", "extract", summary_model=None, failure="RateLimited: sk-ant-123")
    text = registry.compress_text(failed)
    assert f"a summary without a model, since {registry.SUMMARY_FAILED}" in text
    assert "sk-ant" not in text
    alone = registry.compress_text(replace(failed, failure=None))
    assert "a summary without a model, since no model writes summaries" in alone


def test_no_summary_is_claimed_where_none_was_written() -> None:
    """An older one in the plan is not this compaction's."""
    assert "summary" not in registry.compress_text(done("prune", retained_share=None))


def test_compress_without_effect_says_so() -> None:
    """Whatever the topic was."""
    assert registry.compress_text(None, "the schema") == registry.NOTHING_TO_COMPRESS


@pytest.mark.parametrize(
    ("was_running", "dropped", "text"),
    [
        (False, 0, "There is nothing to stop."),
        (True, 0, "Stopped."),
        (True, 1, "Stopped. One waiting message was dropped."),
        (True, 2, "Stopped. 2 waiting messages were dropped."),
        (False, 1, "Nothing was running. One waiting message was dropped."),
    ],
)
def test_stop_says_what_it_did(was_running: bool, dropped: int, text: str) -> None:
    """The running turn and what waited are told apart."""
    assert registry.stop_text(was_running=was_running, dropped=dropped) == text
