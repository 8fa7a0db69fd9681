"""The extractor: what a summary without any model holds, and what a model's is checked against."""

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.context import terms
from agent.context.extract import (
    INTRODUCTION,
    Extract,
    extract,
    key_facts,
    missing_facts_line,
    parse_sections,
    retained_share,
)
from agent.messages import ChatMessage, assistant_message, tool_message, user_message
from agent.tokens.estimate import estimate_tokens
from agent.view.view import Entry

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def entries(*messages: ChatMessage, start: int = 4) -> list[Entry]:
    """Return messages as they stand in a transcript from `start` on."""
    return [Entry(seq, message) for seq, message in enumerate(messages, start)]


def chat(*texts: str, start: int = 4) -> list[Entry]:
    """Return texts of a user and an assistant by turns."""
    roles = (user_message, assistant_message)
    return entries(*(roles[n % 2](text) for n, text in enumerate(texts)), start=start)


def calling(name: str, arguments: str) -> ChatMessage:
    """Return an assistant message that calls a tool."""
    function: Any = {"name": name, "arguments": arguments}
    return ChatMessage(
        role="assistant",
        content=None,
        tool_calls=[{"id": "c", "type": "function", "function": function}],
    )


def coded(number: int) -> str:
    """Return a word that no other number gives."""
    digits = [number // 676 % 26, number // 26 % 26, number % 26]
    return "zq" + "".join(ALPHABET[digit] for digit in digits) + "ly"


def story(first: int, count: int, start: int) -> list[Entry]:
    """Return a chat with six words of its own in each message."""
    texts = (" ".join(coded(6 * n + k) for k in range(6)) for n in range(first, first + count))
    return chat(*texts, start=start)


TRIP = chat(
    "Caroline adopted a dog in Toronto on 2019-05-07.",
    "How lovely! What is it called?",
    "Biscuit. Order W4561 is for its basket, 84.50 dollars.",
    "Noted.",
)


@pytest.mark.parametrize("count", [300, 5_000])
def test_what_people_said_is_in_every_sample(count: int) -> None:
    """Between thousands of results of tools; the first message is there, too."""
    results = [tool_message("c", "log", f"line {coded(n)}") for n in range(count)]
    asked = [user_message(f"Where is order W{4500 + n}?") for n in range(3)]
    middle = count // 2
    said = [*asked[:1], *results[:middle], *asked[1:2], *results[middle:], *asked[2:]]
    facts = key_facts(entries(*said))
    assert {"w4500", "w4501", "w4502"} <= {fact.lower() for fact in facts}


def test_facts_of_a_sample_are_the_same_each_time() -> None:
    """Order and choice depend on nothing else."""
    long = story(0, 2_000, 4)
    assert key_facts(long) == key_facts(long)


def test_terms_stand_in_the_text() -> None:
    """Names, dates, ids, amounts and plain words are found again."""
    words = terms.words_of(extract(TRIP, "", 1000).text)
    assert {"caroline", "toronto", "2019-05-07", "biscuit", "w4561", "84.50", "basket"} <= words


def test_index_names_places() -> None:
    """A line of the index begins with the first message that it covers."""
    text = extract(story(0, 200, 4), "", 4000).text
    index = terms.parse_index(text)
    assert index[0][0] == 4
    assert [seq for seq, _ in index] == sorted(seq for seq, _ in index)
    for (seq, line), (following, _) in pairwise(index):
        numbers = [n for n in range(4, 204) for word in line if word in coded_of(n - 4)]
        assert all(seq <= n <= following for n in numbers)


def coded_of(message: int) -> set[str]:
    """Return the words of one message of a story."""
    return {coded(6 * message + k) for k in range(6)}


def test_each_term_once() -> None:
    """The index holds no term twice, whatever its case."""
    text = extract(chat("Apple pie", "apple PIE", "APPLE tart"), "", 500).text
    index = terms.parse_index(text)
    words = [word.lower() for _, line in index for word in line]
    assert sorted(words) == sorted(set(words))
    assert {"apple", "pie", "tart"} <= set(words)


def test_lower_case_wins() -> None:
    """A word that begins a sentence is written as it stands within others."""
    index = terms.parse_index(extract(chat("Gardens grow.", "I like gardens, Anna."), "", 500).text)
    words = {word for _, line in index for word in line}
    assert {"gardens", "Anna"} <= words
    assert "Gardens" not in words


def test_common_words_are_left_out() -> None:
    """What stands in nearly every message is not worth a place."""
    texts = [f"please {coded(n)}" for n in range(120)]
    words = index_words(extract(chat(*texts), "", 2000))
    assert "please" not in words
    assert coded(60) in words


def index_words(found: Extract) -> set[str]:
    """Return the words of an extract's index in lower case."""
    return {word.lower() for _, line in terms.parse_index(found.text) for word in line}


def test_people_before_bulk_output() -> None:
    """Where there is no room for all, what people wrote is kept rather than tool output."""
    said = [user_message(" ".join(coded(8 * n + k) for k in range(8))) for n in range(30)]
    output = " ".join(f"{coded(5000 + n)}" for n in range(4000))
    found = extract(entries(*said, tool_message("c", "log", output)), "", 1300)
    words = index_words(found)
    assert sum(coded(n) in words for n in range(240)) > 220


def test_focus_draws_messages_in() -> None:
    """Messages that mention a word of the focus are kept before others."""
    texts = [" ".join(coded(20 * n + k) for k in range(20)) for n in range(60)]
    texts[37] += " billing"
    wanted = {coded(20 * 37 + k) for k in range(20)}
    plain = index_words(extract(chat(*texts), "", 800))
    focused = index_words(extract(chat(*texts), "", 800, focus="the Billing"))
    assert wanted <= focused
    assert not wanted <= plain


def test_story_sections() -> None:
    """The readable part holds asks, decisions, files, errors and the last state."""
    text = extract(
        entries(
            user_message("Please repair the login page."),
            calling("read_file", '{"path":"src/web/login.py"}'),
            tool_message("c", "read_file", "line\nValueError: bad token\nend"),
            assistant_message("We decided to use cookies. The rest stays."),
        ),
        "",
        2000,
    ).text
    sections = parse_sections(text)
    assert sections["Asked"] == ["- #4 Please repair the login page."]
    assert sections["Decided"] == ["- #7 We decided to use cookies."]
    assert sections["Files"] == ["- #5 src/web/login.py"]
    assert sections["Errors"] == ["- #6 ValueError: bad token"]
    assert sections["Last state"] == ["- #7 We decided to use cookies. The rest stays."]


def test_newest_asks_and_the_first() -> None:
    """Where asks do not all fit, the first and the newest stand in the text."""
    texts = [f"Ask number {n} " + coded(n) * 9 for n in range(90)]
    asked = parse_sections(extract(chat(*texts), "", 2000).text)["Asked"]
    assert asked[0].startswith("- #4 Ask number 0 ")
    assert asked[-1].startswith("- #92 Ask number 88 ")
    assert len(asked) < 30


def test_story_goes_on() -> None:
    """The first ask is still there after the next extraction."""
    first = extract(TRIP, "", 2000).text
    second = extract(chat("And a cat?", "No.", start=8), first, 2000).text
    asked = parse_sections(second)["Asked"]
    assert asked[0].startswith("- #4 Caroline adopted")
    assert asked[-1] == "- #8 And a cat?"


def test_newest_errors() -> None:
    """Of many errors the newest stand in the text, each text once."""
    results = [tool_message("c", "t", f"Error: {coded(n)}") for n in range(60)]
    again = tool_message("c", "t", f"Error: {coded(59)}")
    errors = parse_sections(extract(entries(*results, again), "", 3000).text)["Errors"]
    assert errors[-2:] == [f"- #62 Error: {coded(58)}", f"- #64 Error: {coded(59)}"]


def test_other_roles() -> None:
    """Roles that other programs invent are read like the system's."""
    developer: Any = {"role": "developer", "content": "Answer in Portuguese."}
    assert "portuguese" in index_words(extract(entries(developer), "", 500))


def test_long_asks_are_clipped() -> None:
    """An ask of many characters is cut where a mark says so."""
    asked = parse_sections(extract(chat("word " * 400), "", 2000).text)["Asked"]
    assert asked[0].endswith("…")
    assert len(asked[0]) < 300


def test_index_is_kept_over_generations() -> None:
    """After ten further extractions every earlier term is still there."""
    text = extract(story(0, 100, 4), "", 1500).text
    known = {word for _, line in terms.parse_index(text) for word in line}
    for n in range(1, 11):
        text = extract(story(100 * n, 100, 4 + 100 * n), text, 1500).text
        assert estimate_tokens(text) <= 1500
    assert known <= {word for _, line in terms.parse_index(text) for word in line}


def test_later_parts_find_room() -> None:
    """The second extraction adds terms of what was still shown before."""
    text = extract(story(0, 200, 4), "", 1500).text
    known = index_words(extract(story(200, 400, 204), text, 1500))
    assert any(coded_of(n) & known for n in range(200, 424))
    assert not any(coded_of(n) & known for n in range(424, 600))


def test_smaller_budget_keeps_the_best_of_each_line() -> None:
    """An index that is too large for a smaller budget loses the ends of its lines."""
    text = extract(story(0, 100, 4), "", 3000).text
    smaller = extract([], text, 900).text
    assert estimate_tokens(smaller) <= 900
    before, after = dict(terms.parse_index(text)), dict(terms.parse_index(smaller))
    assert after
    assert all(before[seq][: len(line)] == line for seq, line in after.items())


def test_model_summary_is_kept() -> None:
    """What a model wrote about earlier parts stays as it is, now and at the next extraction."""
    written = "## Goal\nRepair the boat.\n\n## Files\n- #9 hull.txt is the plan"
    text = extract(TRIP, written, 1000).text
    assert text.endswith(f"## Earlier summary\n{written}")
    again = extract(chat("More", "Fine", start=8), text, 1000).text
    assert again.endswith(f"## Earlier summary\n{written}")
    assert "caroline" in terms.words_of(again)


def test_long_model_summary_goes_into_the_index() -> None:
    """What of a model's summary has no room is still found in the index."""
    written = "\n".join(f"- item {coded(n)}" for n in range(100))
    words = terms.words_of(extract(TRIP, written, 800).text)
    assert sum(coded(n) in words for n in range(100)) > 90
    assert "caroline" in words


def test_two_summaries() -> None:
    """Extracts that were joined are read as one."""
    first = extract(story(0, 20, 4), "", 1000).text
    second = extract(story(20, 20, 24), "", 1000).text
    words = terms.words_of(extract(TRIP, f"{first}\n\n{second}", 2000).text)
    assert coded(6) in words
    assert coded(6 * 25) in words


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-" + "a1b2" * 5,
        "123456789:AAabcdefghijklmnopqrstuvwxyz012345678",
        "Bearer abcdefgh1234",
        "https://anna:hunter2secret@example.com/x",
    ],
)
def test_no_secrets(secret: str) -> None:
    """What is shaped like a credential stands neither in the text nor among the facts."""
    said = [user_message(f"use {secret} now"), tool_message("c", "t", f"got {secret} !")]
    found = extract(entries(*said), f"earlier {secret} too", 800)
    bare = (
        secret.removeprefix("Bearer ").removeprefix("https://anna:").removesuffix("@example.com/x")
    )
    assert bare not in found.text
    assert not any(bare in fact for fact in found.facts)


def test_named_password_is_masked() -> None:
    """A password that a person gives by name stands nowhere."""
    found = extract(chat("My password: hunter2secret", "Thanks"), "", 500)
    assert "hunter2secret" not in found.text + " ".join(found.facts)


def test_encoded_data_is_left_out() -> None:
    """Base64, hashes and lines of symbols do not fill the index."""
    noise = "iVBORw0KGgoAAAANSUhEUgAAAAUA 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b " + "a" * 60
    assert index_words(extract(chat(f"pic {noise} 😀😀"), "", 500)) == {"pic"}


def test_chinese_and_japanese() -> None:
    """Text without spaces is cut into short runs."""
    found = extract(chat("我们明天在北京开会", "設定を変更して café"), "", 500)
    words = index_words(found)
    assert {"我们明天", "在北京开", "café"} <= words


def test_content_parts() -> None:
    """The text parts of a message are read, images are not."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    parts = ChatMessage(role="user", content=[{"type": "text", "text": "a zebra"}, image])
    words = index_words(extract(entries(parts), "", 500))
    assert words == {"zebra"}


def test_long_results_are_sampled() -> None:
    """Of a long result the head and the tail are read, not the middle."""
    result = "alphaword " + "filler " * 3000 + "middleword " + "filler " * 3000 + "omegaword"
    words = terms.words_of(extract(entries(tool_message("c", "t", result)), "", 500).text)
    assert {"alphaword", "omegaword"} <= words
    assert "middleword" not in words


def test_reading_is_bounded() -> None:
    """However much was said, not more is read than one pass can afford."""
    said = chat(*("word " * 2000 for _ in range(400)))
    read = sum(len(piece.text) for piece in terms.read(said))
    assert read <= sum(terms.ROOM_CHARS.values()) + 400 * 3


def test_nothing_to_extract() -> None:
    """No messages and no previous summary give a text without terms."""
    found = extract([], "", 500)
    assert found.text.startswith(INTRODUCTION)
    assert terms.parse_index(found.text) == []
    assert found.facts == ()


def test_facts_are_telling() -> None:
    """Names and numbers come before plain words."""
    facts = extract(TRIP, "", 1000).facts
    assert {"Caroline", "Toronto", "W4561", "84.50"} <= set(facts[:10])


def test_facts_are_bounded() -> None:
    """A long conversation has a few hundred facts."""
    assert len(extract(story(0, 300, 4), "", 4000).facts) == 300


def test_own_text_retains_its_facts() -> None:
    """The extractor's text holds what it asks of a model's."""
    found = extract(TRIP, "", 1000)
    assert retained_share(found.facts, found.text) == 1.0


def test_retained_share() -> None:
    """Facts are found whatever their case and punctuation."""
    facts = ("Caroline", "2019-05-07", "W4561", "Toronto")
    assert retained_share(facts, "In TORONTO (w4561): caroline's dog.") == 0.75
    assert retained_share((), "") == 1.0


def test_missing_facts_line() -> None:
    """Only what a text lacks is named, in the order of the facts."""
    line = missing_facts_line(("Caroline", "Biscuit", "W4561"), "About biscuit.", 100)
    assert line == "Also mentioned: Caroline W4561"
    assert retained_share(("Caroline", "Biscuit", "W4561"), f"About biscuit.\n{line}") == 1.0


def test_missing_facts_line_fits() -> None:
    """The line takes no more than its budget; without room there is none."""
    facts = [coded(n) for n in range(300)]
    line = missing_facts_line(facts, "", 200)
    assert 150 < estimate_tokens(line) <= 200
    assert missing_facts_line(facts, "", 5) == ""
    assert missing_facts_line(facts, " ".join(facts), 200) == ""


texts = st.one_of(
    st.text(max_size=300),
    st.lists(st.sampled_from([coded(n) for n in range(60)]), max_size=60).map(" ".join),
)
spoken = st.one_of(
    texts.map(user_message),
    texts.map(assistant_message),
    texts.map(lambda text: tool_message("c", "t", text)),
    texts.map(lambda text: calling("f", text)),
)


@settings(max_examples=150)
@given(st.lists(spoken, max_size=30), texts, st.integers(0, 600))
def test_budget_is_kept(messages: list[ChatMessage], previous: str, budget: int) -> None:
    """The text never takes more tokens than the budget, from generation to generation."""
    first = extract(entries(*messages), previous, budget)
    assert estimate_tokens(first.text) <= budget
    second = extract(entries(*messages, start=40), first.text, budget)
    assert estimate_tokens(second.text) <= budget


SCRIPT = """
from tests.agent.context.test_extract import TRIP, story, extract
found = extract([*TRIP, *story(0, 80, 8)], "", 900)
print(found.text, found.facts)
"""


def test_same_text_in_any_process() -> None:
    """Neither the order of sets nor the seed of hashes shows in the result."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert "Caroline" in outputs.pop()
