"""Access: nobody is allowed unless a setting says so."""

from typing import Any

import pytest

from adapters.messages import Address, InboundMessage
from gateway.access import Access, stranger_notice
from gateway.settings import AccessSettings
from tests.support.storage import inbound


def access(**values: Any) -> Access:
    return Access(AccessSettings(**values))


def sent(sender: str = "7", platform: str = "telegram", **changes: Any) -> InboundMessage:
    return inbound(sender=sender, address=Address(platform, "default", "c"), **changes)


@pytest.mark.parametrize("mode", ["pairing", "allowlist"])
def test_a_stranger_is_denied(mode: str) -> None:
    """By default, in every mode but open."""
    assert not access(mode=mode).allows(sent())
    assert not access().allows(sent())


def test_open_lets_everybody_in() -> None:
    """On every platform."""
    assert access(mode="open").allows(sent(platform="slack"))


@pytest.mark.parametrize("mode", ["pairing", "allowlist"])
def test_a_listed_sender_is_allowed_on_their_platform_only(mode: str) -> None:
    """The same id on another platform is another person."""
    rules = access(mode=mode, telegram=["7"])
    assert rules.allows(sent("7"))
    assert not rules.allows(sent("70"))
    assert not rules.allows(sent("7", platform="discord"))


def test_ids_may_be_written_as_numbers() -> None:
    """YAML reads an unquoted id as a number."""
    assert access(telegram=[7]).allows(sent("7"))


def test_an_owner_is_allowed() -> None:
    """Owners are named with their platform."""
    rules = access(owners=["telegram:7"])
    assert rules.allows(sent("7"))
    assert not rules.allows(sent("7", platform="slack"))


def test_whom_the_adapter_knows_is_allowed() -> None:
    """The web chat has made sure itself who is there."""
    assert access().allows(sent(platform="web", authenticated=True))
    assert not access().allows(sent(platform="web"))


def test_a_platform_without_a_list_lists_nobody() -> None:
    """Where no senders can be configured, only the adapter's word counts."""
    assert not access(telegram=["7"]).allows(sent("7", platform="null"))


@pytest.mark.parametrize(
    ("mode", "kind", "answered"),
    [
        ("pairing", "dm", True),
        ("pairing", "group", False),
        ("pairing", "thread", False),
        ("allowlist", "dm", False),
    ],
)
def test_a_stranger_gets_an_answer_in_a_direct_chat_only(
    mode: str, kind: str, answered: bool
) -> None:
    """And only where strangers are meant to ask for access."""
    assert access(mode=mode).answers_strangers(sent(chat_kind=kind)) is answered


def test_the_notice_tells_the_operator_what_to_do() -> None:
    """It holds the sender's id, ready to be pasted, and nothing of their message."""
    notice = stranger_notice(sent("12345", text="my secret"))
    assert "`12345`" in notice
    assert "access:\n  telegram: ['12345']" in notice
    assert "secret" not in notice
