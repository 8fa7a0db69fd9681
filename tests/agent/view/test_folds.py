"""Folds: whatever happens to a view, what is known of it is what working it out anew would give."""

import copy
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent.context.meter import TokenMeter
from agent.context.phases.sanitise import sanitise
from agent.messages import (
    ChatMessage,
    assistant_message,
    decode,
    encode,
    image_part,
    tool_message,
    user_message,
)
from agent.models.prefix import PrefixWatch
from agent.view.folds import MOST_FOLDS, Fold, Folds
from agent.view.view import MARKER, View, ViewPlan
from tests.support.scripted_model import ScriptedModel, tool_call

SYSTEM = ChatMessage(role="system", content="Be kind.")
MODEL = ScriptedModel([])
CALLS = ChatMessage(role="assistant", content=None, tool_calls=[tool_call("look", {}, "a")])
KINDS: list[ChatMessage] = [
    user_message("hi"),
    user_message("Привет, how is order 7? " * 40),
    assistant_message("ho"),
    CALLS,
    tool_message("a", "look", "seen"),
    user_message(f"{MARKER} of before"),
    ChatMessage(role="user", content=[image_part(3), {"type": "text", "text": "this"}]),
    ChatMessage(role="assistant", content="m", cache_control={"type": "ephemeral"}),
    ChatMessage(role="assistant", content="t", opaque={"anthropic": [{"thinking": "so " * 9}]}),
]

seen: list[int] = []


def visit(count: int, messages: Sequence[ChatMessage], first: int) -> int:
    """Count messages, and note how many were looked at."""
    seen.append(len(messages) - first)
    return count + len(messages) - first


VISITS = Fold("visits", 0, visit)

changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, len(KINDS) - 1)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("read again"), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, 6)),
        st.tuples(st.just("change"), st.integers(0, 6)),
    ),
    max_size=25,
)


def changed(messages: list[ChatMessage], what: str, where: int) -> list[ChatMessage]:
    """Return a view after something has happened to it; the same list only where it grows."""
    match what:
        case "add":
            messages.append(copy.deepcopy(KINDS[where]))
        case "read again":
            return [decode(encode(message)) for message in messages]
        case "cut":
            return [*messages[:1], *messages[1 + where :]]
        case "change" if where < len(messages):
            return [*messages[:where], user_message("other"), *messages[where + 1 :]]
    return messages


@given(changes)
def test_what_is_known_is_what_working_it_out_would_give(life: list[tuple[str, int]]) -> None:
    """After any growth, edit, compaction and restart: order, digests and sizes."""
    messages, folds = [SYSTEM], Folds()
    for what, where in life:
        messages = changed(messages, what, where)
        if what == "restart":
            folds = Folds()
        known, worked_out = made(messages, folds), made(list(messages), None)
        assert known == worked_out


def made(messages: list[ChatMessage], folds: Folds | None) -> list[object]:
    """Return what a request makes of messages."""
    fixed = sanitise(messages, folds)
    own = folds if fixed is messages else None
    watch = PrefixWatch()
    watch.note(watch.take(fixed[: len(fixed) // 2], (), MODEL), None)
    taken = watch.take(fixed, (), MODEL, own)
    view = View("", ViewPlan(), [], own or Folds(), fixed)
    return [
        fixed,
        taken.digest,
        TokenMeter("m").measure(view),
    ]


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 300))
def test_the_digest_of_any_beginning_is_known(first: int, more: int, of: int) -> None:
    """However far it is back."""
    messages, folds = [user_message(str(n)) for n in range(first)], Folds()
    watch = PrefixWatch()
    watch.take(messages, (), MODEL, folds)
    messages += [user_message(str(n)) for n in range(more)]
    of = min(of, len(messages))
    earlier = PrefixWatch()
    watch.last = sent = earlier.note(earlier.take(messages[:of], (), MODEL), None)
    # A prefix that has moved is reported, which fails the test, and forgotten.
    watch.take(messages, (), MODEL, folds)
    assert watch.last is sent


def test_only_what_is_new_is_looked_at() -> None:
    """Also by a copy, by a list that was read again, and in one that another fold has seen."""
    messages, folds = [*KINDS], Folds()
    seen.clear()
    assert VISITS.of(messages, folds) == VISITS.of(messages, folds) == len(KINDS)
    messages.append(user_message("one more"))
    copied = folds.copy()
    sanitise(messages, copied)
    assert VISITS.of(messages, copied) == len(KINDS) + 1
    again = [*(decode(encode(message)) for message in messages), user_message("and more")]
    assert VISITS.of(again, copied) == len(KINDS) + 2
    assert seen == [len(KINDS), 1, 1]


def test_a_copy_knows_nothing_of_what_comes_later() -> None:
    """Two views of one conversation go on by themselves."""
    folds = Folds()
    VISITS.of([SYSTEM], folds)
    copied = folds.copy()
    assert VISITS.of([SYSTEM, user_message("a")], copied) == 2
    assert VISITS.of([SYSTEM, user_message("b"), user_message("c")], folds) == 3


def test_what_was_asked_of_one_view_is_worked_out_for_others() -> None:
    """In advance: the first request of a turn finds it."""
    one, other = Folds(asked := {}), Folds(asked)
    VISITS.of([SYSTEM], one)
    other.advance([*KINDS])
    seen.clear()
    assert VISITS.of([*KINDS], other) == len(KINDS)
    assert seen == []


def test_views_on_other_threads_learn_of_folds_meanwhile() -> None:
    """All views share what was asked: a fold may come while another view advances."""
    asked: dict[object, Fold[int]] = {}

    def meanwhile(count: int, messages: Sequence[ChatMessage], first: int) -> int:
        VISITS.of([SYSTEM], Folds(asked))
        return visit(count, messages, first)

    Fold("meanwhile", 0, meanwhile).of([], Folds(asked))
    asked.pop("visits", None)
    Folds(asked).advance([SYSTEM])
    assert set(asked) == {"meanwhile", "visits"}


def test_folds_that_nobody_asks_for_any_more_are_let_go() -> None:
    """The oldest: models and tools change."""
    asked: dict[object, Fold[int]] = {}
    folds = Folds(asked)
    for n in range(3 * MOST_FOLDS):
        assert Fold(n, 0, visit).of([SYSTEM], folds) == 1
    assert list(asked) == list(range(2 * MOST_FOLDS, 3 * MOST_FOLDS))


def test_what_is_known_holds_as_long_as_the_view_begins_as_it_did() -> None:
    """A message that is shown in another way is looked at, and all that follows."""
    folds = Folds()
    contents: Fold[tuple[ChatMessage, ...]] = Fold(
        "contents", (), lambda known, messages, first: (*known, *messages[first:])
    )
    for messages in ([*KINDS], [SYSTEM, *KINDS], KINDS[:3]):
        assert contents.of(messages, folds) == tuple(messages)
