"""Prompts and tools are stored once by content, and go with the last segment that has them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.prompt import LAYERS, OWN_LAYER, SEPARATOR, SystemPrompt
from gateway.storage import lineage, maintenance
from gateway.storage.lineage import PromptBase, Session
from gateway.storage.models import prompt_base, prompt_text, session
from tests.support.searching import feed
from tests.support.storage import Store, admit, begin_anew, inbound

SHARED = "You are a test. " * 300
TOOLS = '[{"name":"look"}]' * 200


def based(text: str, own: str, tools: str = TOOLS) -> PromptBase:
    """Return a base of which the end is a root's own."""
    layers = (("identity", len(text)), (OWN_LAYER, len(own)))
    return PromptBase(
        tools, {"model": "m"}, lambda *_: SystemPrompt(text + SEPARATOR + own, layers)
    )


def begun(store: Store, chat: str, text: str = SHARED, tools: str = TOOLS) -> Session:
    """Return the settled first segment of a chat."""
    conversation_id, _ = store.run(admit, inbound(chat=chat))
    root = store.run(lineage.active, conversation_id)
    return store.run(lineage.settle_base, root, based(text, f"session: {chat}", tools))


def texts(store: Store) -> list[str]:
    return [row.body for row in store.rows(prompt_text)]


def test_many_conversations_store_a_prompt_once(store: Store) -> None:
    """Each has its own end of it beside the reference, and reads the whole byte for byte."""
    for n in range(20):
        begun(store, f"chat-{n}")
    assert texts(store) == [SHARED, TOOLS]
    assert len(store.rows(prompt_base)) == 1
    for row in store.rows(session):
        found = store.run(lineage.get, row.id)
        chat = f"chat-{row.id - 1}"
        assert found.system_prompt == f"{SHARED}\n\nsession: {chat}"
        assert found.prompt.parts()[-1] == (OWN_LAYER, f"session: {chat}")
        assert found.tools == TOOLS


def test_a_conversation_costs_no_second_copy_of_its_prompt(store: Store) -> None:
    """A segment's row takes hundreds of bytes, not the thousands that prompt and tools have."""
    begun(store, "first")
    sizes = "SELECT sum(length(view_plan) + length(own_prompt)) FROM session"
    begun(store, "second")
    assert store.run(lambda conn: conn.exec_driver_sql(sizes).scalar_one()) < 1_000
    assert len(texts(store)) == 2


def test_children_and_equal_roots_refer_to_the_same_base(store: Store) -> None:
    """A split inherits it; a `/new` with the same prompt finds it again."""
    root = begun(store, "a")
    child = store.run(lineage.split, root, "compression", root.plan)
    assert child.base_id == root.base_id
    assert store.run(lineage.get, child.id) == child
    anew = store.run(begin_anew, root.conversation)
    assert anew.base_id is None
    settled = store.run(lineage.settle_base, anew, based(SHARED, "session: 9"))
    assert settled.base_id == root.base_id


def test_the_last_reference_takes_the_text_with_it(store: Store) -> None:
    """What two conversations share stays until the second one is forgotten, tools likewise."""
    one, two = begun(store, "a"), begun(store, "b")
    own = begun(store, "c", text="Knows that Ada likes tea.")
    store.run(maintenance.forget, own.conversation)
    assert texts(store) == [SHARED, TOOLS]
    store.run(maintenance.forget, one.conversation)
    assert texts(store) == [SHARED, TOOLS]
    store.run(maintenance.forget, two.conversation)
    assert (texts(store), store.rows(prompt_base)) == ([], [])


def test_a_base_that_is_replaced_goes(store: Store) -> None:
    """Other tools make another base; the one before is nobody's then."""
    root = begun(store, "a")
    moved = store.run(lineage.settle_base, root, based("Another.", "session: a", "[]"))
    assert (moved.moved, moved.base_id) == ("tools", root.base_id + 1 if root.base_id else None)
    assert sorted(texts(store)) == ["Another.", "[]"]
    assert store.run(lineage.get, root.id) == moved


def test_the_same_text_as_prompt_and_tools_is_one_text(store: Store) -> None:
    """It goes once nobody refers to it in either place."""
    here = begun(store, "a", text="[]", tools="[]")
    assert texts(store) == ["[]"]
    store.run(maintenance.forget, here.conversation)
    assert texts(store) == []


def test_a_settled_segment_is_read_in_one_statement(store: Store) -> None:
    """The texts come with the segment's row: a turn asks the database no more often than before."""
    root = begun(store, "a")
    assert store.statements(lineage.active, root.conversation) == ["SELECT session"]
    plans = store.plans(lineage.active, root.conversation)
    assert not [plan for plan in plans if plan.startswith("SCAN")]


def test_bases_are_released_by_index(store: Store) -> None:
    """Whether somebody still uses a base is one look-up, however many segments there are."""
    here = begun(store, "a")
    feed(store)
    plans = store.plans(maintenance.forget, here.conversation)
    harmless = ("SCAN CONSTANT", "SCAN (", "SCAN search_index VIRTUAL")
    scans = [plan for plan in plans if plan.startswith("SCAN")]
    assert [plan for plan in scans if not plan.startswith(harmless)] == []


@given(st.lists(st.text(min_size=1), max_size=4), st.booleans())
def test_a_prompt_is_its_two_parts(written: list[str], has_own: bool) -> None:
    """Splitting and joining gives the same prompt, with or without an end of its own."""
    names = [f"layer-{n}" for n in range(len(written))]
    if has_own and written:
        names[-1] = OWN_LAYER
    layers = tuple((name, len(text)) for name, text in zip(names, written, strict=True))
    prompt = SystemPrompt(SEPARATOR.join(written), layers)
    shared, own = prompt.split()
    assert shared.with_own(own) == prompt
    assert bool(own) == (OWN_LAYER in names)


def test_only_the_last_layer_is_a_roots_own() -> None:
    """What is told apart at the end of a prompt is all that roots do not share."""
    own = [layer.name for layer in LAYERS if layer.stability == "session"]
    assert own == [OWN_LAYER] == [LAYERS[-1].name]


@pytest.mark.parametrize("text", ["", "Ä" * 10])
def test_an_empty_shared_part_is_a_part(store: Store, text: str) -> None:
    """A prompt that consists of its own end alone is read back as it was."""
    conversation_id, _ = store.run(admit, inbound())
    prompt = SystemPrompt(text, ((OWN_LAYER, len(text)),) if text else ())
    written = replace(based("", ""), write=lambda *_: prompt)
    root = store.run(lineage.active, conversation_id)
    settled = store.run(lineage.settle_base, root, written)
    assert store.run(lineage.get, root.id) == settled
    assert settled.prompt == prompt
