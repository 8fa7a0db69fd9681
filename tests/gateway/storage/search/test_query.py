"""The search: what it finds, in which order, and never anybody else's."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from gateway.storage.schema import message
from gateway.storage.search import query
from gateway.storage.search.query import MAX_CONVERSATIONS, Match, SearchLimits
from tests.support.searching import chat, feed, found, said, talk, tell
from tests.support.storage import Store

NOISE = tuple(f"this is message {word}" for word in ["alpha", "beta", "gamma", "delta"])


def test_rare_words_count_more(store: Store) -> None:
    """The message with the rare one is first, though others have as many of the question."""
    texts = ["the tea is hot", "the saxophone", *NOISE * 3, "more tea", *NOISE, "tea again"]
    here = talk(store, *texts)
    assert found(store, [here], "tea or the saxophone?")[0] == 2


def test_words_of_a_question_add_up(store: Store) -> None:
    """Also where they are spread over question and answer."""
    here = talk(
        store, "I paint", *NOISE, "Where?", "I paint at the lake", *NOISE, "the lake is cold"
    )
    assert found(store, [here], "Where did she paint the lake?")[0] == 7


def test_an_answer_without_the_words_is_found_beside_its_question(store: Store) -> None:
    """The one next to it comes before one farther off."""
    here = talk(store, "What is your favourite quagga?", "Ada.", "I see", "so", "well", "yes")
    assert found(store, [here], "favourite quagga") == [1, 2, 3]


def test_a_long_message_says_less_with_a_word(store: Store) -> None:
    """It holds many."""
    long = " ".join(f"word{n}" for n in range(100))
    here = talk(store, f"saxophone {long}", *NOISE, "a saxophone")
    assert found(store, [here], "saxophone")[0] == 6


def test_of_equal_ones_the_newest_is_first(store: Store) -> None:
    """It is more likely to still hold."""
    here = talk(store, "a zebra", *NOISE, *NOISE, "a zebra")
    assert found(store, [here], "zebra")[0] == 10


@pytest.mark.parametrize("question", ["東京", "京", "都", "お寿司", "寿"])
def test_words_without_spaces_are_found(store: Store, question: str) -> None:
    """Of one character or more, wherever they stand."""
    here = talk(store, *NOISE, "昨日東京都でお寿司を食べた", *NOISE)
    assert found(store, [here], question)[0] == 5


@pytest.mark.parametrize(
    ("only", "seqs"),
    [
        (SearchLimits(role="assistant"), [2, 4]),
        (SearchLimits(since_s=30), [3, 4]),
        (SearchLimits(until_s=30), [1, 2]),
        (SearchLimits(since_s=20, until_s=30), [2]),
        (SearchLimits(since_s=99), []),
        (SearchLimits(until_s=1), []),
    ],
)
def test_a_search_is_limited(store: Store, only: SearchLimits, seqs: list[int]) -> None:
    """By who said it, by when, by where in the transcript."""
    here = chat(store)
    roles = ("user", "assistant")
    store.run(tell, here, [said("a zebra", roles[n % 2]) for n in range(4)])
    store.run(lambda conn: conn.execute(update(message).values(at=message.c.seq * 10)))
    feed(store)
    assert sorted(found(store, [here], "zebra", only=only)) == seqs


@pytest.mark.parametrize("question", ["", "?!", "quagga", '"', "NEAR(a b)", "a* OR -b:c", "\ud800"])
def test_nothing_is_found_for_what_nobody_said(store: Store, question: str) -> None:
    """Whatever it looks like, it is words."""
    here = talk(store, "zebra")
    assert found(store, [here], question) == []
    assert found(store, [], question) == []


@settings(max_examples=60)
@given(question=st.text(max_size=40) | st.text('"*^:(){}+-ANDORTNEzebra ', max_size=30))
def test_any_question_is_safe(shared_store: Store, question: str) -> None:
    """No text is a syntax error."""
    assert set(found(shared_store, None, question)) <= set(found(shared_store, None, "zebra"))


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory, database_template: Any) -> Any:
    """A database that examples share: two direct chats, some words in each."""
    path = tmp_path_factory.mktemp("search") / "parley.db"
    path.write_bytes(database_template.read_bytes())
    opened = Store(path)
    talk(opened, "a zebra and 東京")
    talk(opened, "a zebra or a horse", user="8")
    yield opened
    opened.close()


def test_only_the_given_conversations_are_searched(store: Store) -> None:
    """Their order does not matter; without any it is all of them."""
    one, two = talk(store, "a zebra"), talk(store, "a horse and a zebra", user="8")
    talk(store, "a zebra", user="9")
    assert {each.conversation for each in store.run(query.find, [two, one], "zebra")} == {one, two}
    assert len(store.run(query.find, None, "zebra")) == 3


RARE = (
    "automobile purchase physician children medication salary apartment holiday argument"
    " presentation employer kitchen computer telephone grandmother restaurant"
)
"""Words with others of the same beginning looked for beside them."""


@pytest.mark.parametrize("words", [" ".join(f"word{n:02}" for n in range(30)), RARE])
def test_the_longest_search_is_no_error(store: Store, words: str) -> None:
    """Whether of as many terms and conversations as there may be all are common or rare."""
    chats = [talk(store, words, user=str(n)) for n in range(MAX_CONVERSATIONS + 2)]
    assert len(store.run(query.find, chats, words, limit=50)) == MAX_CONVERSATIONS


def test_a_form_of_a_word_is_found_behind_the_word(store: Store) -> None:
    """For less."""
    here = talk(store, *NOISE, "painters paint", *NOISE, *NOISE, "we were painting", *NOISE)
    assert found(store, [here], "painting")[0] == 14
    assert 5 in found(store, [here], "painting", limit=20)


def test_of_common_words_the_newest_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They tell which of the rare ones' messages is best."""
    monkeypatch.setattr(query, "NEWEST", 4)
    here = talk(store, *["tea"] * 5, *NOISE, "a saxophone", *NOISE, "tea with a saxophone", *NOISE)
    assert found(store, [here], "tea saxophone")[0] == 15
    assert set(found(store, [here], "tea", limit=3)) <= {3, 4, 5, 15}


@pytest.mark.usefixtures("sqlite_alone")
def test_a_role_is_found_behind_many_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many messages of other roles say more."""
    monkeypatch.setattr(query, "CANDIDATES", 2)
    here = talk(store, *["a zebra", "so"] * 10, "a zebra", "zebra and a long answer about it")
    assert found(store, [here], "zebra", only=SearchLimits(role="assistant"))[0] == 22


def test_a_match_says_where_it_is(store: Store) -> None:
    """Conversation, seq, and a score above zero."""
    here = talk(store, "a zebra")
    (match,) = store.run(query.find, [here], "zebra")
    assert match == Match(here, 1, match.score)
    assert match.score > 0
