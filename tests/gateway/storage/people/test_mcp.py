"""Records about MCP servers: which stay confined, and owners' decisions about tools' texts."""

from dataclasses import replace

import pytest

from agent.tools.registry import HeldTool
from gateway.errors import NotFound
from gateway.storage import audit_log, maintenance
from gateway.storage.people import mcp
from gateway.storage.schema import REVISION
from tests.support.storage import Store

HELD = HeldTool("ab" * 32, "files", "read", "it speaks of all other tools", "Before any other tool")


def changed(digest: str) -> HeldTool:
    """Return another text of the same tool."""
    return HeldTool(digest * 32, "files", "read", "why", "Before all other tools")


def test_a_new_home_has_no_server_that_stays_confined(store: Store) -> None:
    """Its first start finds no record, whatever servers its settings have."""
    assert store.run(mcp.at_start, ["files"]) == (frozenset(), frozenset())


def test_an_agreement_counts_for_one_text(store: Store) -> None:
    """The record names the owner; a later decision replaces it."""
    store.run(mcp.note, [HELD])
    assert [(each.state, each.told) for each in store.run(mcp.texts)] == [("asked", False)]
    store.run(mcp.decide, HELD.digest[: mcp.ID_CHARS].upper(), "agreed", "telegram:u1")
    assert store.run(mcp.agreed) == {HELD.digest}
    store.run(mcp.note, [HELD, changed("cd")])
    assert [each.state for each in store.run(mcp.texts)] == ["agreed", "asked"]
    assert store.run(mcp.agreed) == {HELD.digest}
    store.run(mcp.decide, HELD.digest[: mcp.ID_CHARS], "refused", "telegram:u2")
    assert store.run(mcp.agreed) == frozenset()
    said = [(row.kind, row.by) for row in store.run(audit_log.listed, 5)]
    assert said == [("mcp_refused", "telegram:u2"), ("mcp_agreed", "telegram:u1")]


def test_of_a_tool_that_changes_again_and_again_one_text_waits(store: Store) -> None:
    """Only the newest: a server cannot make the table grow with each start."""
    for digest in ("01", "02", "03"):
        store.run(mcp.note, [changed(digest)])
    assert [each.held.digest for each in store.run(mcp.texts)] == ["03" * 32]


def test_a_yes_covers_no_text_whose_digest_begins_alike(store: Store) -> None:
    """Two that share some digits can be searched for: a server shows one, then has the other."""
    shown, hidden = (replace(HELD, digest=f"{'ab' * 12}{end * 40}") for end in "cd")
    store.run(mcp.note, [shown])
    [asked] = store.run(mcp.texts)
    store.run(mcp.note, [hidden])
    with pytest.raises(NotFound):
        store.run(mcp.decide, asked.id, "agreed", "telegram:u1")
    assert store.run(mcp.agreed) == frozenset()


def test_what_nobody_asked_about_cannot_be_decided(store: Store) -> None:
    """An unknown id, or only the beginning of one."""
    store.run(mcp.note, [HELD])
    for name in ("", "ab", "ff" * 6):
        with pytest.raises(NotFound):
            store.run(mcp.decide, name, "agreed", "telegram:u1")


@pytest.fixture
def upgraded(outdated: Store) -> Store:
    """A migrated home of the previous version."""
    assert maintenance.upgrade(outdated.location) == REVISION
    return outdated


def test_servers_of_a_home_in_use_stay_confined(upgraded: Store) -> None:
    """Those in its settings at the first start after the upgrade."""
    assert maintenance.check(upgraded.location) == []
    assert upgraded.run(mcp.confined) == {""}
    assert upgraded.run(mcp.at_start, ["new", "files"]).confined == {"files", "new"}
    later = upgraded.run(mcp.at_start, ["later", "files"])
    assert later.confined == {"files", "new"}
