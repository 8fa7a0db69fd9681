"""Nodes are stored with the compaction that made them, or not at all."""

import pytest

from agent.nodes import Node
from agent.ports import PlannerState
from agent.view import Summary, ViewPlan
from gateway.errors import LeaseLost
from gateway.storage import compactions, maintenance, nodes
from tests.support.storage import Store, compact, compaction, turn_of

LEAF = Node(1, 0, 2, 8, "What was done.", "extract", 5, 90)
ROOT = Node(2, 1, 2, 12, "Much was done.", "model", 4, 9, children=(1,))
PLAN = ViewPlan(head_upto=1, summaries=(Summary("x", 2, 8, node=1),), tail_from=9)


def test_new_nodes_come_with_the_plan(store: Store) -> None:
    """In order of number; those of another conversation are not among them."""
    turn = store.run(turn_of, "hello")
    conversation = turn.lease.conversation
    moved = store.run(compact, turn, PLAN, nodes=(LEAF,))
    store.run(compact, moved, PLAN, nodes=(ROOT,))
    assert store.run(nodes.of_conversation, conversation) == [LEAF, ROOT]
    assert store.run(nodes.of_conversation, conversation + 1) == []
    store.run(maintenance.forget, conversation)
    assert store.run(nodes.of_conversation, conversation) == []


def test_a_compaction_that_is_refused_leaves_no_node(store: Store) -> None:
    """Both are one transaction."""
    turn = store.run(turn_of, "hello")
    store.run(compact, turn, PLAN)
    with pytest.raises(LeaseLost):
        store.run(compactions.compact, turn, compaction(PLAN, nodes=(LEAF,)), PlannerState())
    assert store.run(nodes.of_conversation, turn.lease.conversation) == []
