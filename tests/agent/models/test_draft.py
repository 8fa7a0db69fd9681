"""The growing message: ids of calls that are unique in the conversation."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.messages import ChatMessage, ToolCall, tool_message, user_message
from agent.models.base import StopReason
from agent.models.draft import CLOSERS, PART_CHARS, AnswerDraft, CallDraft, ReasoningFilter
from tests.agent.models.sink import CollectingSink
from tests.support.scripted_model import tool_call

QUESTION = user_message("Where is it?")

Asked = tuple[str, str]
"""Id and arguments of a call as a server wrote it."""
ROOM = 1_000


def calls_of(
    before: list[ChatMessage], *asked: Asked, stop: StopReason = "tool_calls"
) -> list[ToolCall]:
    """Return the calls of an answer to these messages, as they are recorded."""
    draft = AnswerDraft(CollectingSink(), before, ROOM)
    draft.calls = [CallDraft(call_id, "look", [arguments]) for call_id, arguments in asked]
    return draft.completion(stop, None, "model").message.get("tool_calls", [])


def ids_of(before: list[ChatMessage], *asked: Asked) -> list[str]:
    return [call["id"] for call in calls_of(before, *asked)]


def step(*ids: str) -> list[ChatMessage]:
    """Return a message with such calls, and their results."""
    calls = [tool_call("look", {}, call_id) for call_id in ids]
    asked = ChatMessage(role="assistant", content=None, tool_calls=calls)
    return [asked, *(tool_message(call_id, "look", "seen") for call_id in ids)]


def test_an_id_of_its_own_is_kept() -> None:
    """The provider knows its calls by it."""
    assert ids_of([QUESTION, *step("a")], ("b", "{}"), ("c", "{}")) == ["b", "c"]


def test_a_call_without_id_gets_one() -> None:
    """The same each time: place, number and what is called make it."""
    first, second = ids_of([QUESTION], ("", "{}"), ("", "{}"))
    assert first != second
    assert ids_of([QUESTION], ("", "{}"), ("", "{}")) == [first, second]
    assert ids_of([QUESTION], ("", '{"n":1}')) != [first]


def test_an_id_that_repeats_in_a_message_is_replaced() -> None:
    """Its first bearer keeps it."""
    first, second = ids_of([QUESTION], ("a", "{}"), ("a", "{}"))
    assert first == "a"
    assert second.startswith("call_1_1_")


def test_an_id_of_an_earlier_message_is_replaced() -> None:
    """Some servers number the calls of each message anew; no provider takes an id twice."""
    before = [QUESTION, *step("call_0", "call_1")]
    found = ids_of(before, ("call_0", "{}"), ("call_2", "{}"))
    assert found[1] == "call_2"
    assert found[0].startswith("call_4_0_")


def test_a_generated_id_that_is_taken_gets_longer() -> None:
    """A compaction has made the conversation as short as it was at an equal call."""
    [taken] = ids_of([QUESTION, QUESTION, QUESTION], ("", "{}"))
    assert ids_of([QUESTION, *step(taken)], ("", "{}")) == [f"{taken}_"]
    assert ids_of(step(taken, f"{taken}_"), ("", "{}")) == [f"{taken}__"]


def test_what_the_provider_wants_back_bears_the_new_id() -> None:
    """It is replayed with the call that it belongs to."""
    draft = AnswerDraft(CollectingSink(), [QUESTION, *step("a")], ROOM)
    draft.calls = [CallDraft("a", "look", ["{}"], opaque="signed")]
    [call] = draft.completion("tool_calls", None, "model").message["tool_calls"]
    assert draft.opaque_calls == {call["id"]: "signed"}


def test_a_call_that_was_cut_takes_no_id() -> None:
    """Its arguments end in the middle: it is left out, and the rest stays."""
    [call] = calls_of([QUESTION], ("a", "{}"), ("b", '{"n": '), stop="length")
    assert call["id"] == "a"


few_ids = st.sampled_from(["", "a", "b", "call_0"])


@given(st.lists(st.lists(few_ids, max_size=4), max_size=6))
def test_ids_are_unique_in_a_conversation(messages: list[list[str]]) -> None:
    """Whatever the server makes of them."""
    before = [QUESTION]
    seen: list[str] = []
    for ids in messages:
        found = ids_of(before, *((call_id, "{}") for call_id in ids))
        assert len(found) == len(ids)
        seen += found
        before += step(*found)
    assert len(set(seen)) == len(seen)
    assert all(seen)


def test_empty_calls_without_an_end_fill_an_answer() -> None:
    """Each takes memory, though it brings no character."""
    draft = AnswerDraft(CollectingSink(), [], 10 * PART_CHARS)
    draft.say("Once")
    for _ in range(11):
        draft.begin_call()
    assert draft.is_full
    assert draft.completion("tool_calls", None, "model").stop_reason == "endless"


@given(st.lists(st.text(max_size=30)), st.integers(min_value=1, max_value=200))
def test_an_answer_holds_the_beginning_of_what_came(pieces: list[str], most: int) -> None:
    """To the character, and a full one says so."""
    draft = AnswerDraft(CollectingSink(), [], most)
    for piece in pieces:
        draft.think(piece)
    assert draft.streamed == "".join(pieces)[:most]
    assert draft.is_full == (len("".join(pieces)) > most)


PARTS = ["<think>", "</think>", "<REASONING_SCRATCHPAD>", "</reasoning_scratchpad>", "`", "```\n"]
HARMONY = ["<|channel|>analysis", "<|message|>", "<|end|>", "<|channel|>final<|message|>"]
SPOKEN = ["analysis", "assistantfinal", "<|start|>assistant", "[/THINK]", "◁/think▷", '"', ". "]
TEXTS = st.lists(
    st.sampled_from([*PARTS, *HARMONY, *SPOKEN, "<", "<thi", "a", "b ", "\n", "İ", "K"]),
    max_size=12,
).map("".join)


def split(
    text: str, cuts: list[int] | None = None, *, opened: bool = False, cut: bool = False
) -> tuple[str, str]:
    """Feed the text in pieces; return what is visible and the reasoning."""
    splitter = ReasoningFilter(opened=opened)
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts or [])})
    shown = ""
    for start, end in pairwise(edges):
        new = splitter.feed(text[start:end])
        shown = new if splitter.takes_back else shown + new
    new = splitter.close(cut=cut)
    return new if splitter.takes_back else shown + new, splitter.reasoning


@given(TEXTS, st.lists(st.integers(0, 100)), st.booleans(), st.booleans())
def test_cuts_do_not_matter(text: str, cuts: list[int], opened: bool, cut: bool) -> None:
    """Any way of cutting gives the same as the text in one piece."""
    assert split(text, cuts, opened=opened, cut=cut) == split(text, opened=opened, cut=cut)


@given(st.text(alphabet="<>/thinkab `\n", max_size=40), st.lists(st.integers(0, 100)))
def test_text_without_tags_is_unchanged(text: str, cuts: list[int]) -> None:
    """Where there is no tag nothing is lost."""
    if "<think>" not in text and "</think>" not in text:
        assert split(text, cuts) == (text, "")


@given(st.text(alphabet="ab <\n", max_size=30), st.text(alphabet="xyz", min_size=1, max_size=30))
def test_a_leading_block_is_never_visible(answer: str, thought: str) -> None:
    """What stands in the block is reasoning, the rest is the answer."""
    visible, reasoning = split(f"<think>{thought}</think>{answer}", [3, 9, 12, 20])
    assert visible == answer.lstrip()
    assert reasoning == thought


@pytest.mark.parametrize(
    ("text", "visible", "reasoning"),
    [
        ("<Think>a</THINK>b", "b", "a"),
        ("<REASONING_SCRATCHPAD>a</REASONING_SCRATCHPAD>\n\nb", "b", "a"),
        ("<think>a</think><think>b</think>c", "c", "a\nb"),
        ("Wait <think>a</think> there", "Wait  there", "a"),
        ("<think>cut short", "", "cut short"),
        ("Use the <think> tag.", "Use the <think> tag.", ""),
        ("Write `<think>` and `</think>`.", "Write `<think>` and `</think>`.", ""),
        ("```\n<think>a</think>\n```", "```\n<think>a</think>\n```", ""),
        ("<think></think>b", "b", ""),
        ("a <thin", "a <thin", ""),
    ],
)
def test_examples(text: str, visible: str, reasoning: str) -> None:
    """Blocks of both names are reasoning; mentions of a tag and code are text."""
    assert split(text) == (visible, reasoning)


@pytest.mark.parametrize("opener", CLOSERS)
@pytest.mark.parametrize("upper", [False, True])
def test_each_mark_of_the_table_hides_a_thought(opener: str, upper: bool) -> None:
    """Whatever family of models writes it, and in any case of letters."""
    for closer in CLOSERS[opener]:
        marks = (opener.upper(), closer.upper()) if upper else (opener, closer)
        assert split(f"{marks[0]}Hm.\n{marks[1]}\n\nHello!", [3, 9]) == ("Hello!", "Hm.")


LONE = sorted({mark for marks in CLOSERS.values() for mark in marks} - {"<|end|>", "<|call|>"})


@pytest.mark.parametrize("closer", LONE)
@pytest.mark.parametrize(
    "text",
    [
        "Hm. Greet back.\n{}\n\nHello!",
        "Hm. Greet back.{}Hello!",
        "Hm. Greet back. {} Hello!",
        "Hm, greet back{}Hello!",
        "Hm, greet back {}\nHello!",
        "Hm. Is it `x`?\n\n```\nx = 1\n```\n{}\nHello!",
        'Hm. They said "hi"{}Hello!',
        "用户打招呼。{}Hello!",
        "Hm.{}\nOr so.{}\nHello!",
        "Hm. Greet back 😀 {}Hello!",
    ],
)
def test_a_lone_closing_mark_hides_what_came_before_it(closer: str, text: str) -> None:
    """Templates put the opening one into the prompt, so the model does not write it."""
    visible, reasoning = split(text.replace("{}", closer), [5, 17, 20, 22])
    assert visible == "Hello!"
    assert reasoning.startswith(("Hm", "用"))
    assert closer not in reasoning


@pytest.mark.parametrize(
    "text",
    [
        "Write `</think>` to close it.",
        "Close it with </think> and go on.",
        "The marks are <b> and </thinking>, always.",
        'It ends with "</think>" here.',
        "It ends with “</think>” here.",
        "```xml\n</think>\n```\nThat is all.",
        "用 </think> 来结束。",
        "The tag (</think>) ends it.",
        "Either `</think>`\nor `[/THINK]`.",
        "a - </thought> - b",
        "Magistral closes with [/THINK] instead.",
        "assistantfinal is no mark, nor is analysis.",
        "Wrap it in <thinking> and </thinking> tags.",
        "A <thought experiment> is fun.",
        "3 < 4, <b>bold</b>, <a href='x'>y</a> <t r=1>",
        "~~~\n<think>a</think>\n~~~\nHi",
        "Such as:\n\n    <think>a</think>\n\nHi",
    ],
)
def test_a_mention_of_a_mark_is_text(text: str) -> None:
    """In code, in quotes, in the middle of a sentence."""
    assert split(text, [2, 7, 15, 18]) == (text, "")


@pytest.mark.parametrize(
    ("text", "visible", "reasoning"),
    [
        ("</think>\n\nHi", "Hi", ""),
        ("\n\n</think>\n\nHi", "Hi", ""),
        ("<think>a</think></think>Hi", "Hi", "a"),
        ("Hm.\n</think>", "", "Hm."),
        ("<think>Hm.\n</thinking>\n\nHi", "Hi", "Hm."),
        ("<thought>Hm.[/THINK]Hi", "Hi", "Hm."),
        ("<think>a\n</thinking>b</think>Hi", "Hi", "a\n</thinking>b"),
        (
            f"{HARMONY[0]}<|message|>Hm.<|end|><|start|>assistant{HARMONY[3]}Hi<|return|>",
            "Hi",
            "Hm.",
        ),
        ("<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Hi", "Hi", "Hm."),
        ("Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi<|end|>", "Hi", "Hm."),
        ("<|channel|>final<|message|>Hi<|return|>", "Hi", ""),
        ("analysisWe greet back.assistantfinalHi!", "Hi!", "We greet back."),
        ("analysis shows that assistantfinal is no word", None, ""),
        ("◁think▷Hm.◁/think▷Hi", "Hi", "Hm."),
        ("<think >Hm.</think >Hi", "Hi", "Hm."),
        ("< think >Hm.</ think>Hi", "Hi", "Hm."),
        ("Sure.\n<think type='deep' id=1>Hm.</think>Hi", "Sure.\nHi", "Hm."),
        ("<antThinking>Hm.</antThinking>Hi", "Hi", "Hm."),
        ("<|think|>Hm.</think>Hi", "Hi", "Hm."),
        ("<|channel|>final <|constrain|>json<|message|>{}", "{}", ""),
        ("<|begin_of_solution|>Hi<|end_of_solution|>", "Hi", ""),
    ],
)
def test_odd_marks(text: str, visible: str | None, reasoning: str) -> None:
    """As servers pass them on whose own parser is off."""
    assert split(text, [4, 30, 33]) == (text if visible is None else visible, reasoning)


@pytest.mark.parametrize(
    ("text", "cut", "visible", "reasoning", "again"),
    [
        ("Hm.\n</think>\nHi", False, "Hi", "Hm.", True),
        ("<think>Hm.</think>Hi", False, "Hi", "Hm.", True),
        ("Hi there", False, "Hi there", "", False),
        ("Hm, so", True, "", "Hm, so", True),
        ("", False, "", "", True),
    ],
)
def test_a_model_that_began_with_a_thought_is_expected_to_do_so_again(
    text: str, cut: bool, visible: str, reasoning: str, again: bool
) -> None:
    """Nothing is shown before the closing mark; without one it was no thought after all."""
    splitter = ReasoningFilter(opened=True)
    assert splitter.feed(text) == (visible if again else "")
    splitter.close(cut=cut)
    assert splitter.began_inside == again
    assert split(text, [3], opened=True, cut=cut) == (visible, reasoning)


def test_text_is_shown_as_early_as_possible() -> None:
    """Only what may become a tag is held back."""
    splitter = ReasoningFilter()
    assert [splitter.feed(piece) for piece in ("Hi <", "b", "> <th")] == ["Hi ", "<b", "> "]


@pytest.mark.parametrize(
    ("text", "held_back"),
    [
        ("Hi", ""),
        ("Hi <thi", "<thi"),
        ("<think>a</think>b", "a"),
        ("<think>a</think>b<think>cut sho", "acut sho"),
    ],
)
def test_what_is_held_back_is_known(text: str, held_back: str) -> None:
    """It has been written, and paid for, all the same."""
    splitter = ReasoningFilter()
    splitter.feed(text)
    assert splitter.held_back == held_back
