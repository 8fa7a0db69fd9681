"""The library as other programs call it: lists of OpenAI chat messages in and out."""

import copy
import subprocess
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from typing_extensions import override

import agent
from agent import ContextEngine, HistoryManager, estimate_tokens, tokens
from agent.context_engine import Compressed, CompressionRequest
from agent.engines.rounds import HEADING, PARTS
from agent.errors import SummaryFailed
from agent.library import CompactionResult, compact_messages
from agent.safety.redaction import MASK
from agent.tokens import estimate_messages, rough_tokens
from agent.view.view import MARKER, NOTE, REFERENCE
from tests.agent.test_context_compressor import Writer
from tests.support.conversations import PNG, conversation_of, faults, plain

WINDOW = 20_000
TARGET = 6_000
"""60 % of half of the window."""

GOOD = (
    "## Goal\nShip the order.\n## Progress\n### Done\n1. asked\n## Next Steps\nnone\n"
    "## Critical Context\nthe order has number 4711\n## Active Task\nship it"
)
LATER = GOOD.replace("1. asked", "1. asked\n2. shipped")

Messages = list[dict[str, Any]]

SYSTEM: dict[str, Any] = {"role": "system", "content": "You are a careful assistant."}


def talk(turns: int, start: int = 0, words: int = 40) -> Messages:
    """Return so many exchanges, each message with words of its own."""
    said: Messages = []
    for n in range(start, start + turns):
        text = f"about order-{n} of customer-{n}: " + "word " * words
        said += [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return said


def long_talk() -> Messages:
    return [SYSTEM, *talk(50), {"role": "user", "content": "And now?"}]


def compact(messages: Messages, **more: Any) -> CompactionResult:
    return compact_messages(messages, **{"context_length": WINDOW, **more})


def summaries_of(messages: Messages) -> Messages:
    return [m for m in messages if str(m.get("content")).startswith(MARKER)]


def test_a_short_list_comes_back_as_it_is() -> None:
    """The very dicts, level none, nothing evicted."""
    messages = [SYSTEM, *talk(3)]
    result = compact(messages)
    tokens = estimate_messages(messages)
    assert result == CompactionResult(messages, "none", tokens, tokens, [])
    assert all(one is two for one, two in zip(result.messages, messages, strict=True))


def test_below_the_target_nothing_happens_and_above_it_something_does() -> None:
    """60 % of the threshold, not the threshold: a result must not be compacted again."""
    small, large = [SYSTEM, *talk(24)], [SYSTEM, *talk(32)]
    assert estimate_messages(small) < TARGET < estimate_messages(large)
    assert compact(small).level == "none"
    assert compact(large).level != "none"


def test_a_long_list_comes_back_short() -> None:
    """With its estimates, and in a form that every provider takes."""
    messages = long_talk()
    result = compact(messages)
    assert result.level == "extract"
    assert result.tokens_before == estimate_messages(messages)
    assert result.tokens_after == estimate_messages(result.messages) <= TARGET
    assert faults(result.messages) == []  # type: ignore[arg-type]
    assert len(summaries_of(result.messages)) == 1


def test_evicted_are_the_positions_that_left() -> None:
    """What stays, in order, is the system message and what was not evicted."""
    messages = long_talk()
    result = compact(messages)
    kept = [m for n, m in enumerate(messages) if n not in result.evicted]
    assert result.evicted == sorted(set(result.evicted))
    assert result.evicted
    assert [m for m in result.messages[1:] if m not in summaries_of(result.messages)] == kept[1:]


@pytest.mark.parametrize("system", [[SYSTEM], []])
def test_positions_count_from_the_lists_own_start(system: Messages) -> None:
    """With and without a system message."""
    messages = [*system, *talk(40)]
    evicted = compact(messages).evicted
    assert evicted[0] == len(system) + 2
    assert all(messages[n]["role"] != "system" for n in evicted)


def test_unchanged_messages_are_the_callers_own_dicts() -> None:
    """Nothing is copied that need not be."""
    messages = long_talk()
    result = compact(messages)
    assert result.messages[-1] is messages[-1]
    assert result.messages[1] is messages[1]


def test_the_input_is_never_changed() -> None:
    """Neither the list nor anything in it."""
    messages = [*long_talk(), {"role": "user", "content": [{"type": "text", "text": "x" * 40_000}]}]
    before = copy.deepcopy(messages)
    compact(messages)
    assert messages == before


def test_the_result_can_be_changed_without_harm_to_a_second_call() -> None:
    """No state is kept between calls."""
    first, second = compact(long_talk()), compact(long_talk())
    assert first == second


def test_a_second_call_changes_nothing() -> None:
    """What comes back is below the target."""
    once = compact(long_talk())
    twice = compact(once.messages)
    assert (twice.level, twice.messages, twice.evicted) == ("none", once.messages, [])


# The summary


def test_the_summary_is_written_by_the_callers_function() -> None:
    """It gets the originals and a limit; its text stands in the view."""
    writer = Writer(GOOD)
    result = compact(long_talk(), summarise=writer)
    (summary,) = summaries_of(result.messages)
    assert result.level == "summary"
    assert "the order has number 4711" in summary["content"]
    assert "order-17" in writer.prompts[0]
    assert 0 < writer.limits[0] <= WINDOW * 0.05 * 2


def test_a_summary_that_failed_is_replaced_by_the_extractors() -> None:
    """A caller says so with SummaryFailed."""
    failed = compact(long_talk(), summarise=Writer(SummaryFailed("down")))
    assert (failed.level, failed.failure) == ("extract", "down")
    assert failed.messages == compact(long_talk()).messages


def test_any_error_of_the_callers_function_is_a_failed_summary() -> None:
    """The conversation goes on; the log and the result tell what went wrong."""
    with capture_logs() as logs:
        result = compact(long_talk(), summarise=Writer(ZeroDivisionError("by zero")))
    assert result.messages == compact(long_talk()).messages
    assert (result.level, result.failure) == ("extract", "ZeroDivisionError: by zero")
    (line,) = [line for line in logs if line["event"] == "summary_call_failed"]
    assert (line["log_level"], line["error"]) == ("warning", "ZeroDivisionError")


@pytest.mark.parametrize("answer", [None, b"## Goal", {"content": GOOD}])
def test_an_answer_that_is_no_text_is_a_failed_summary(answer: Any) -> None:
    """Clients return all kinds of things."""
    result = compact(long_talk(), summarise=lambda _prompt, _most: answer)
    assert result.level == "extract"
    assert result.failure == f"the summary is not text but {type(answer).__name__}"


@pytest.mark.parametrize("summarise", [None, Writer(GOOD)])
def test_without_a_failure_none_is_told(summarise: Writer | None) -> None:
    """Nobody was asked, or the answer was used."""
    assert compact(long_talk(), summarise=summarise).failure is None


@pytest.mark.parametrize("answer", ["", "no headings at all", GOOD[: len(GOOD) // 2]])
def test_an_answer_that_is_no_summary_is_not_taken(answer: str) -> None:
    """Empty, something else, or cut short."""
    assert compact(long_talk(), summarise=Writer(answer)).level == "extract"


def test_a_summary_that_is_too_long_is_cut() -> None:
    """It is paid for: nobody asks again."""
    writer = Writer(f"{GOOD}\n{'padding ' * 1_500}")
    result = compact(long_talk(), summarise=writer)
    (summary,) = summaries_of(result.messages)
    assert (result.level, len(writer.prompts)) == ("summary", 1)
    assert "the order has number 4711" in summary["content"]


def test_a_focus_reaches_the_prompt() -> None:
    """The model is told what to dwell on."""
    writer = Writer(GOOD)
    compact(long_talk(), summarise=writer, focus="customer-13's complaint")
    assert "customer-13's complaint" in writer.prompts[0]


def test_a_focus_guides_the_extractor() -> None:
    """Without a model, too."""
    messages = [SYSTEM, *talk(200, words=30), {"role": "user", "content": "And now?"}]
    messages[61]["content"] += " xylophone glockenspiel"
    plain, focused = compact(messages), compact(messages, focus="xylophone glockenspiel")
    assert "glockenspiel" in summaries_of(focused.messages)[0]["content"]
    assert plain.tokens_after <= TARGET


# Lists that were compacted before


def test_a_compacted_list_is_updated() -> None:
    """The earlier summary is handed on and replaced; there is one summary and one note."""
    first = compact(long_talk(), summarise=Writer(GOOD))
    writer = Writer(LATER)
    result = compact([*first.messages, *talk(24, start=100)], summarise=writer)
    (summary,) = summaries_of(result.messages)
    assert "2. shipped" in summary["content"]
    assert "the order has number 4711" in writer.prompts[0]
    assert str(result.messages[0]["content"]).count(NOTE) == 1
    assert faults(result.messages) == []  # type: ignore[arg-type]


def test_an_updated_summary_counts_as_evicted() -> None:
    """Its message is not in the result any more."""
    first = compact(long_talk(), summarise=Writer(GOOD)).messages
    place = first.index(summaries_of(first)[0])
    result = compact([*first, *talk(24, start=100)], summarise=Writer(LATER))
    assert place in result.evicted


def test_many_compactions_keep_the_head_and_the_size() -> None:
    """A conversation may go on for ever."""
    messages = [SYSTEM, *talk(1)]
    head = messages[1]
    for n in range(8):
        messages = compact([*messages, *talk(40, start=100 * (n + 1))]).messages
        assert estimate_messages(messages) <= TARGET
        assert faults(messages) == []  # type: ignore[arg-type]
        assert len(summaries_of(messages)) == 1
    assert messages[1] == head
    assert str(messages[0]["content"]).count(NOTE) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"What does {MARKER} mean?",
        f"{MARKER} is what it says.",
        f"{REFERENCE} What does that mean?",
        f"{REFERENCE} (messages 2 to 9) is odd",
        f"Look: {REFERENCE} (messages 2 to 9)\n\nGoal: tea.",
    ],
)
def test_what_only_looks_like_a_summary_is_none(text: str) -> None:
    """A user may quote one, or the start of one."""
    quoting = {"role": "user", "content": text}
    result = compact([SYSTEM, quoting, *talk(40)])
    assert result.messages[1] == quoting


def test_a_tools_result_is_no_summary() -> None:
    """It may show the file in which one stands."""
    calls = [{"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}]
    text = f"{REFERENCE} (messages 2 to 9)\n\nGoal: tea."
    result = compact([
        SYSTEM,
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": text},
        *talk(40),
    ])
    assert result.messages[3] == {"role": "tool", "tool_call_id": "c", "content": text}
    assert faults(result.messages) == []  # type: ignore[arg-type]


# Shapes


def test_a_system_message_of_parts_gets_the_note_as_a_part() -> None:
    """The parts before it keep their bytes, cache marks included."""
    parts = [{"type": "text", "text": "Rules.", "cache_control": {"type": "ephemeral"}}]
    messages: Messages = [{"role": "system", "content": parts}, *talk(40)]
    result = compact(messages)
    assert result.messages[0]["content"] == [*parts, {"type": "text", "text": NOTE}]
    again = compact([*result.messages, *talk(40, start=100)])
    assert again.messages[0] == result.messages[0]


def test_a_system_message_without_content_gets_the_note() -> None:
    """Some programs send None."""
    result = compact([{"role": "system", "content": None}, *talk(40)])
    assert result.messages[0]["content"] == NOTE


def test_without_a_system_message_there_is_none_afterwards() -> None:
    """The summary's marker says what has to be said."""
    result = compact(talk(40))
    assert {m["role"] for m in result.messages} == {"user", "assistant"}
    assert result.messages[0]["role"] == "user"


def tool_talk(**odd: Any) -> Messages:
    """Return steps with tools, in the shapes that other programs write."""
    steps: Messages = [{"role": "user", "content": "Go.", "name": "ada"}]
    for n in range(40):
        function = {"name": "look", "arguments": orjson.dumps({"n": n}).decode()}
        calls = [{"id": f"c{n}", "type": "function", "function": function, "index": 0}]
        steps += [
            {"role": "assistant", "content": None, "tool_calls": calls, "refusal": None, **odd},
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"result {n} " + "data " * 150},
        ]
    return [*steps, {"role": "assistant", "content": "Done.", "tool_calls": None, **odd}]


def test_foreign_shapes_are_taken() -> None:
    """Content None, tool_calls None, results without a name."""
    result = compact([SYSTEM, *tool_talk()])
    assert result.level != "none"
    assert result.tokens_after <= TARGET
    shown: Any = [{k: v for k, v in m.items() if v is not None} for m in result.messages]
    assert faults(shown) == []


def test_unknown_keys_are_kept() -> None:
    """In messages and in calls; they are somebody's."""
    result = compact([SYSTEM, *tool_talk(annotations=[1])])
    asking = [m for m in result.messages if m.get("tool_calls")]
    assert result.messages[1]["name"] == "ada"
    assert asking
    assert all(m["annotations"] == [1] and "refusal" in m for m in asking)
    assert all(m["tool_calls"][0]["index"] == 0 for m in asking)


def test_parleys_own_key_is_not_in_the_result() -> None:
    """Strict providers refuse keys that they do not know."""
    result = compact(long_talk())
    assert all("synthetic" not in m for m in result.messages)


def test_images_count_and_give_way() -> None:
    """A list of nothing but pictures converges too."""
    pictures: Messages = [{"role": "user", "content": [PNG]} for _ in range(20)]
    result = compact([SYSTEM, *pictures])
    assert result.tokens_after <= TARGET
    assert result.messages[-1] == pictures[-1]


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_has_a_size(window: int) -> None:
    """Anything else is a mistake of the caller."""
    with pytest.raises(ValueError, match="context_length must be positive"):
        compact_messages(long_talk(), context_length=window)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("protect_last_n", 0),
        ("threshold", 0.0),
        ("threshold", 1.01),
        ("target_ratio", 0.0),
        ("target_ratio", 50),
    ],
)
def test_numbers_are_in_their_ranges(name: str, number: float) -> None:
    """A percentage in place of a share, for one."""
    with pytest.raises(ValueError, match=f"{name} must be .*, not {number}"):
        compact(long_talk(), **{name: number})


def test_a_message_has_a_role() -> None:
    """Its position is told."""
    with pytest.raises(ValueError, match="message 1 has no role"):
        compact([SYSTEM, {"content": "hi"}])


def test_an_empty_list_stays_empty() -> None:
    """There is nothing to be done."""
    assert compact([]) == CompactionResult([], "none", 0, 0, [])


def test_a_lone_system_message_stays() -> None:
    """However large it is."""
    messages: Messages = [{"role": "system", "content": "rule " * 20_000}]
    result = compact(messages)
    assert (result.messages, result.level) == (messages, "none")


def test_the_settings_are_followed() -> None:
    """Another threshold, another tail."""
    messages = long_talk()
    assert compact(messages, threshold=1.0).level == "none"
    many = compact([SYSTEM, *talk(300, words=1)], protect_last_n=30)
    few = compact([SYSTEM, *talk(300, words=1)], protect_last_n=1, target_ratio=0.1)
    assert len(few.messages) < len(many.messages)
    assert len(many.messages) >= 30


def test_the_engine_lcm_takes_lists_too() -> None:
    """Its nodes are in the summary; their list can be compacted again."""
    first = compact(long_talk(), engine="lcm")
    second = compact([*first.messages, *talk(60, start=50)], engine="lcm")
    for result in (first, second):
        assert result.level == "extract"
        assert result.tokens_after <= TARGET
        assert faults(result.messages) == []  # type: ignore[arg-type]
        [shown] = summaries_of(result.messages)
        assert "[node " in shown["content"]


class Broken(ContextEngine):
    """Raises."""

    name = "broken"

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        raise ZeroDivisionError


def test_an_engine_that_breaks_is_replaced_by_the_compressor() -> None:
    """The result is the compressor's own, and the log names the engine."""
    with capture_logs() as logs:
        result = compact(long_talk(), engine=Broken)
    assert result == compact(long_talk())
    assert [(each["event"], each["engine"]) for each in logs] == [("engine_failed", "broken")]


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ({"engine": "nobody"}, "there is no engine 'nobody'"),
        ({"options": {"x": 1}}, "has no options: x"),
        ({"engine": "lcm", "options": {"x": 1}}, "the engine lcm has no options: x"),
    ],
)
def test_an_unknown_engine_or_option_is_refused(chosen: dict[str, Any], complaint: str) -> None:
    """Not replaced by the default one."""
    with pytest.raises(ValueError, match=complaint):
        compact(long_talk(), **chosen)


@pytest.mark.thorough
def test_the_model_decides_the_tokenizer() -> None:
    """OpenAI's models are counted, others estimated."""
    messages = long_talk()
    counted = compact(messages, model="gpt-4o")
    assert counted.tokens_before == estimate_messages(messages, "gpt-4o")
    assert counted.tokens_before != compact(messages).tokens_before


def test_the_library_is_imported_when_it_is_asked_for() -> None:
    """What only needs a word of the agent does not load the compressor."""
    code = (
        "import sys, agent.messages\n"
        "assert 'agent.library' not in sys.modules\n"
        "from agent import compact_messages\n"
        "assert compact_messages.__module__ == 'agent.library'"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_has_no_other_names() -> None:
    """A name that is not of the library is an AttributeError, as of any module."""
    with pytest.raises(AttributeError, match="no attribute 'compress_messages'"):
        agent.compress_messages  # noqa: B018


class TestWork:
    """What grows with the conversation is looked at once."""

    def test_no_message_is_counted_more_than_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By characters: those of the input, again as material, then the new list and summary."""
        counted: list[int] = []

        def counting(text: str, model: str | None = None) -> int:
            counted.append(len(text))
            return rough_tokens(text, model)

        monkeypatch.setattr(tokens, "rough_tokens", counting)
        messages = [SYSTEM, *talk(400), {"role": "user", "content": "And now?"}]
        result = compact(messages, summarise=lambda _prompt, _tokens: GOOD)
        assert result.level == "summary"
        before, after = chars_of(messages), chars_of(result.messages)
        assert sum(counted) <= 2.1 * before + 4 * after

    @pytest.mark.parametrize("place", [0, 40, 70])
    def test_one_secret_in_all_the_material_is_masked(self, place: int) -> None:
        """Wherever it stands; the rest of the prompt is what it was."""
        secret = "ghp_" + "a1B2" * 9
        messages = [SYSTEM, *talk(50), {"role": "user", "content": "And now?"}]
        messages[3 + place]["content"] += f" {secret}"
        writer = Writer(GOOD)
        compact(messages, summarise=writer)
        assert secret not in writer.prompts[0]
        assert f"word word  {MASK}" in writer.prompts[0]


def chars_of(messages: Messages) -> int:
    return sum(len(m["content"]) for m in messages)


# HistoryManager: appended once, shown in parts, never lost


def turn(n: int) -> Messages:
    """Return a round with a call and its result."""
    call = {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"request {n}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{n}", "content": f"result {n}: " + "x " * 50},
        {"role": "assistant", "content": f"answer {n}"},
    ]


def filled(rounds: int, **settings: Any) -> HistoryManager:
    """Return a history of so many rounds."""
    history = HistoryManager(**settings)
    for n in range(rounds):
        for message in turn(n):
            history.append(message)
    return history


def rounds_of(history: HistoryManager) -> list[Messages]:
    """Return the rounds of the view; what stands before the first one is in none."""
    shown, starts = history.get_history(), history.find_round_boundaries()
    return [shown[a:b] for a, b in zip(starts, [*starts[1:], len(shown)], strict=True)]


def test_a_history_is_what_was_appended() -> None:
    """The very dicts, in a list of its own each time."""
    history = filled(3)
    shown = history.get_history()
    assert shown == [message for n in range(3) for message in turn(n)] == history.originals()
    shown.clear()
    assert len(history.get_history()) == 12


def test_a_round_is_one_message_of_the_user_and_what_follows() -> None:
    """Its positions, its messages and their number."""
    history = filled(3)
    assert history.find_round_boundaries() == [0, 4, 8]
    assert history.estimate_rounds() == 3
    assert rounds_of(history) == [turn(n) for n in range(3)]


def test_what_stands_before_the_first_round_is_in_none() -> None:
    """The system message."""
    history = HistoryManager()
    history.append({"role": "system", "content": "Be kind."})
    for message in turn(1):
        history.append(message)
    assert rounds_of(history) == [turn(1)]


def test_a_cleared_history_begins_anew() -> None:
    """No message, no token."""
    history = filled(30, min_retain_rounds=2)
    history.compress()
    history.clear()
    assert (history.get_history(), history.originals(), history.estimate()) == ([], [], 0)


def test_the_estimate_is_that_of_the_view_without_counting_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each message is counted once, when it is appended."""
    counted: list[int] = []
    real = tokens.message_tokens

    def counting(message: Any, *rest: Any) -> int:
        counted.append(id(message))
        return real(message, *rest)

    monkeypatch.setattr(tokens, "message_tokens", counting)
    history = filled(20)
    assert len(counted) == 80
    assert history.estimate() == history.estimate() > 0
    assert len(counted) == 80
    monkeypatch.undo()
    assert history.estimate() == estimate_tokens(history.get_history())


def test_it_wants_to_be_compressed_above_its_share_of_the_window() -> None:
    """0.8 of it, and not at it."""
    history = filled(10)
    tokens = history.estimate()
    at = filled(10, context_window=int(tokens / 0.8) + 1)
    above = filled(10, context_window=int(tokens / 0.8) - 2)
    assert (at.should_compress(), above.should_compress()) == (False, True)


def test_the_newest_rounds_stay_complete() -> None:
    """And the first request, as `rounds` says; what left is still on record."""
    history = filled(30, min_retain_rounds=4)
    before = history.estimate()
    result = history.compress()
    assert result.level == "extract"
    assert rounds_of(history)[1:] == [turn(n) for n in range(26, 30)]
    assert HEADING in str(history.get_history()[1]["content"])
    assert result.messages == history.get_history()
    assert history.estimate() == result.tokens_after < before == result.tokens_before
    assert len(history.originals()) == 120
    assert [history.originals()[n] for n in result.evicted[:3]] == turn(0)[1:]


def test_few_rounds_are_left_alone() -> None:
    """There is nothing to archive."""
    history = filled(4, min_retain_rounds=4)
    assert history.compress().level == "none"
    assert history.get_history() == history.originals()


def test_a_text_of_ones_own_stands_for_the_older_rounds() -> None:
    """HelloAgents' `compress(summary)`; a later one takes its place."""
    history = filled(6, min_retain_rounds=2)
    assert history.compress("Requests 0 to 3 are done.").summary == (
        f"{HEADING}\n\nRequests 0 to 3 are done."
    )
    for n in range(6, 9):
        for message in turn(n):
            history.append(message)
    result = history.compress(f"{HEADING}\n\nRequests 0 to 6 are done.")
    assert result.summary == f"{HEADING}\n\nRequests 0 to 6 are done."
    assert rounds_of(history)[1:] == [turn(7), turn(8)]
    assert faults(history.get_history()) == []  # type: ignore[arg-type]


def test_a_model_writes_the_five_parts() -> None:
    """With a function that asks one."""
    answer = "\n".join(f"### {part}\nNone." for part in PARTS)
    history = filled(6, min_retain_rounds=2, summarise=lambda _prompt, _most: answer)
    result = history.compress()
    assert (result.level, result.failure) == ("summary", None)
    assert all(part in str(result.summary) for part in PARTS)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"min_retain_rounds": 0}, "greater than or equal to 1"),
        ({"context_window": 0}, "must be positive"),
        ({"compression_threshold": 80}, "at most 1"),
    ],
)
def test_settings_are_checked_at_once(settings: dict[str, Any], complaint: str) -> None:
    """Not at the first compaction."""
    with pytest.raises(ValueError, match=complaint):
        HistoryManager(**settings)


def test_a_message_without_a_role_is_refused() -> None:
    """And nothing of it is kept."""
    history = filled(1)
    with pytest.raises(ValueError, match="no role"):
        history.append({"content": "who?"})
    assert len(history.originals()) == 4


@given(st.binary(max_size=60))
def test_whatever_is_appended_a_provider_takes_the_view(program: bytes) -> None:
    """Compressed at any moment; the originals are all there."""
    messages = plain(conversation_of(program))
    history = HistoryManager(min_retain_rounds=1, context_window=4_000)
    for message in messages:
        history.append(message)
        if history.should_compress():
            history.compress()
    assert history.originals() == messages
    assert faults(history.get_history()) == []  # type: ignore[arg-type]
