"""Access: nobody is allowed unless a setting or an owner says so, and what is for the bot."""

import itertools
from collections.abc import Callable
from typing import Any, get_args

import pytest
from sqlalchemy import Connection, event

from adapters.messages import Address, InboundMessage
from agent.ports import InquiryKind
from agent.tools.policy import FOR_OWNERS
from gateway.access.policy import Access, Answerer, SenderRole, answer_refusal, is_for_bot
from gateway.settings.tree import AccessSettings, GroupRule
from gateway.storage.people import members, web_users
from tests.support.storage import Store, inbound

RoleOf = Callable[..., SenderRole]


def access(**values: Any) -> Access:
    return Access(AccessSettings.model_validate(values))


def sent(sender: str = "7", platform: str = "telegram", **changes: Any) -> InboundMessage:
    return inbound(sender=sender, address=Address(platform, "default", "c"), **changes)


@pytest.fixture
def role_of(store: Store) -> RoleOf:
    """Return what a message's sender may do under these settings."""
    return lambda message, **values: store.run(access(**values).role_of, message)


@pytest.mark.parametrize("mode", ["pairing", "allowlist"])
def test_a_stranger_is_denied(role_of: RoleOf, mode: str) -> None:
    """By default, in every mode but open."""
    assert role_of(sent(), mode=mode) == "stranger"
    assert role_of(sent()) == "stranger"


def test_open_lets_everybody_in_as_guests(role_of: RoleOf) -> None:
    """On every platform."""
    assert role_of(sent(platform="slack"), mode="open") == "guest"


@pytest.mark.parametrize("mode", ["pairing", "allowlist", "open"])
def test_a_listed_sender_is_a_member_on_their_platform_only(role_of: RoleOf, mode: str) -> None:
    """The same id on another platform is another person."""
    values = {"mode": mode, "telegram": ["7"]}
    others = "guest" if mode == "open" else "stranger"
    assert role_of(sent("7"), **values) == "member"
    assert role_of(sent("70"), **values) == others
    assert role_of(sent("7", platform="discord"), **values) == others


def test_ids_may_be_written_as_numbers(role_of: RoleOf) -> None:
    """YAML reads an unquoted id as a number."""
    assert role_of(sent("7"), telegram=[7]) == "member"


def test_an_owner_is_named_with_their_platform(role_of: RoleOf) -> None:
    """The same id elsewhere is a stranger."""
    assert role_of(sent("7"), owners=["telegram:7"]) == "owner"
    assert role_of(sent("7", platform="slack"), owners=["telegram:7"]) == "stranger"


@pytest.mark.parametrize("role", ["member", "owner"])
def test_whoever_was_let_in_is_allowed(store: Store, role_of: RoleOf, role: members.Role) -> None:
    """From the next message on, and until it is taken back."""
    store.run(members.let_in, ("telegram", "7"), "Ann", role, "code")
    assert role_of(sent("7"), mode="allowlist") == role
    assert role_of(sent("7", platform="discord"), mode="allowlist") == "stranger"
    store.run(members.revoke, "telegram", "7")
    assert role_of(sent("7"), mode="allowlist") == "stranger"


def test_an_owner_by_code_may_be_listed_too(store: Store, role_of: RoleOf) -> None:
    """The higher role_of counts."""
    store.run(members.let_in, ("telegram", "7"), "Ann", "owner", "code")
    assert role_of(sent("7"), telegram=["7"]) == "owner"


def test_the_first_owner_of_the_web_chat_needs_no_row(role_of: RoleOf) -> None:
    """Its door has made sure who is there; without that nobody is anybody."""
    assert role_of(sent("web", "web", authenticated=True), mode="allowlist") == "owner"
    assert role_of(sent("web", "web"), mode="allowlist") == "stranger"
    assert role_of(sent("7", "web", authenticated=True), mode="open") == "stranger"


@pytest.mark.parametrize("role", ["owner", "member", "guest", "removed"])
def test_a_web_user_has_the_role_of_their_invitation(
    store: Store, role_of: RoleOf, role: web_users.WebRole
) -> None:
    """In messages, and among those whose words a turn holds, where guests count as strangers."""
    store.run(web_users.enter, "ann", role, None, "command line")
    theirs = "stranger" if role == "removed" else role
    assert role_of(sent("ann", "web", authenticated=True), mode="allowlist") == theirs
    weakest = store.run(access().weakest, ["web:web", "web:ann"])
    assert weakest == (theirs if role in {"owner", "member"} else "stranger")


def test_a_web_user_who_is_somebody_elsewhere_has_that_role(store: Store, role_of: RoleOf) -> None:
    """As it is now: what is revoked there is revoked here."""
    store.run(members.let_in, ("telegram", "7"), "Ann", "member", "code")
    store.run(web_users.enter, "ann", "owner", "telegram:7", "command line")
    here = sent("ann", "web", authenticated=True)
    assert role_of(here) == "member"
    assert store.run(access().weakest, ["web:ann"]) == "member"
    assert role_of(here, owners=["telegram:7"]) == "owner"
    store.run(members.revoke, "telegram", "7")
    assert role_of(here) == "stranger"
    assert store.run(access().weakest, ["web:ann"]) == "stranger"


@pytest.mark.parametrize("platform", ["mode", "groups", "owners", "null"])
def test_a_platform_without_a_list_lists_nobody(role_of: RoleOf, platform: str) -> None:
    """Whatever its name: other settings are no lists of senders."""
    values = {"mode": "allowlist", "groups": {"7": {}}, "owners": ["7"], "telegram": ["7"]}
    assert role_of(sent("7", platform=platform), **values) == "stranger"


def test_anyone_in_a_group_may_be_a_guest(role_of: RoleOf) -> None:
    """Where its rule says so, and nowhere else."""
    groups = {"telegram:c": {"senders": "anyone"}}
    assert role_of(sent(chat_kind="group"), groups=groups) == "guest"
    assert role_of(sent(chat_kind="thread"), groups=groups) == "guest"
    assert role_of(sent(chat_kind="dm"), groups=groups) == "stranger"
    assert role_of(sent(chat_kind="group", platform="slack"), groups=groups) == "stranger"


@pytest.mark.parametrize(
    ("senders", "may"),
    [
        (["telegram:1"], True),
        (["telegram:2"], True),
        (["slack:3"], True),
        (["web:web"], True),
        (["telegram:1", "telegram:2", "slack:3", "web:web"], True),
        (["telegram:9"], False),
        (["telegram:1", "telegram:9"], False),
        (["slack:1"], False),
        (["telegram:"], False),
        ([""], False),
        ([], False),
    ],
)
def test_who_may_have_tools_act(store: Store, senders: list[str], may: bool) -> None:
    """All who asked: owners, listed ones, those who were let in, the web chat. No guest."""
    store.run(members.let_in, ("slack", "3"), "Ann", "member", "telegram:1")
    rules = access(mode="open", owners=["telegram:1"], telegram=["2"])
    assert store.run(rules.may_act, senders) is may


def test_many_are_looked_up_together(store: Store) -> None:
    """A group may have heard hundreds since it began: one statement finds all of them."""
    senders = [str(n) for n in range(1000)]
    for sender in senders:
        store.run(members.let_in, ("telegram", sender), "Ann", "member", "telegram:1")
    statements: list[str] = []

    def looked_up(conn: Connection) -> bool:
        event.listen(conn, "before_cursor_execute", lambda *args: statements.append(args[2]))
        return access().may_act(conn, [f"telegram:{sender}" for sender in senders])

    assert store.run(looked_up)
    assert len(statements) == 1


@pytest.mark.parametrize(
    ("senders", "are"),
    [
        (["telegram:1", "slack:3", "web:web"], True),
        (["telegram:1", "telegram:2"], False),
        (["slack:1"], False),
        ([], False),
    ],
)
def test_who_is_an_owner(store: Store, senders: list[str], are: bool) -> None:
    """All of them: by the settings, as the first one, or through the web chat."""
    store.run(members.let_in, ("slack", "3"), "Ann", "owner", "telegram:1")
    rules = access(mode="open", owners=["telegram:1"], telegram=["2"])
    assert (store.run(rules.weakest, senders) == "owner") is are


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (["telegram:c", "telegram:*", "*"], "telegram:c"),
        (["telegram:*", "*"], "telegram:*"),
        (["slack:c", "telegram:d", "*"], "*"),
        (["slack:*"], None),
    ],
)
def test_the_closest_rule_holds(keys: list[str], found: str | None) -> None:
    """The chat's, its platform's, that of all, the defaults."""
    rules = {key: {"respond": "always", "context": key == found} for key in keys}
    wanted = GroupRule(respond="always", context=True) if found else GroupRule()
    assert access(groups=rules).rule(sent(chat_kind="group")) == wanted


def test_a_direct_chat_has_no_rule() -> None:
    """Rules are for groups and threads."""
    assert access(groups={"*": {"respond": "never"}}).rule(sent(chat_kind="dm")) is None


@pytest.mark.parametrize(
    ("respond", "addressed", "in_thread", "is_for"),
    [
        ("mention", "direct", False, True),
        ("mention", "thread", True, True),
        ("mention", "thread", False, False),
        ("mention", "overheard", True, False),
        ("always", "overheard", False, True),
        ("always", "thread", False, True),
        ("never", "direct", True, False),
        ("never", "thread", True, False),
    ],
)
def test_what_is_for_the_bot(respond: Any, addressed: Any, in_thread: bool, is_for: bool) -> None:
    """By the group's rule, and by whom a message addresses."""
    message = sent(chat_kind="group", addressed=addressed)
    assert is_for_bot(GroupRule(respond=respond), message, in_thread=in_thread) is is_for


def test_all_in_a_direct_chat_is_for_the_bot() -> None:
    """Whatever an adapter says."""
    assert is_for_bot(None, sent(addressed="overheard"), in_thread=False)


KINDS: tuple[InquiryKind, ...] = get_args(InquiryKind)
PLACES: tuple[Any, ...] = ("elsewhere", "direct", "console", "here")
RANKS: tuple[SenderRole, ...] = ("stranger", "guest", "member", "owner")
ORDINARY, OF_OWNERS = "act", sorted(FOR_OWNERS)[0]


def may_answer(kind: InquiryKind, tool: str, for_owners: Any, *who: Any) -> bool:
    role, where, asked, spoke = who
    answerer = Answerer(role=role, where=where, is_asked=asked, has_spoken=spoke)
    return answer_refusal(kind, tool, answerer, for_owners=for_owners) is None


BOOLS = (False, True)
QUESTIONS = list(itertools.product(KINDS, (ORDINARY, OF_OWNERS), BOOLS))
ANSWERERS = list(itertools.product(RANKS, PLACES, BOOLS, BOOLS))


def test_who_may_not_act_approves_nothing() -> None:
    """Whatever the question, wherever it is, and whosever turn waits."""
    weak = [each for each in ANSWERERS if each[0] in {"stranger", "guest"}]
    asked = [each for each in QUESTIONS if each[0] == "approval"]
    tried = list(itertools.product(asked, weak))
    assert len(tried) == 128
    assert not any(may_answer(*question, *who) for question, who in tried)


def test_what_is_for_owners_nobody_else_approves() -> None:
    """By the policy's row or by the tool; and in no group that it was not asked in."""
    for kind, tool, for_owners in QUESTIONS:
        for who in ANSWERERS:
            if kind == "approval" and may_answer(kind, tool, for_owners, *who):
                assert who[0] == "owner" or (tool == ORDINARY and not for_owners and who[2])
                in_own_chat = for_owners and who[1] == "direct"
                assert who[1] == "here" or in_own_chat or (who[0], who[1]) == ("owner", "console")


def test_no_combination_grants_more_than_its_parts() -> None:
    """What may be answered is still so with any one thing stronger: role, conversation, place.

    And of a question that wants less: not for owners, another tool. But in a chat of their own
    owners answer only what is for them.
    """
    seen = 0
    for (kind, tool, for_owners), (role, where, asked, spoke) in itertools.product(
        QUESTIONS, ANSWERERS
    ):
        if not may_answer(kind, tool, for_owners, role, where, asked, spoke):
            continue
        seen += 1
        for stronger in RANKS[RANKS.index(role) :]:
            assert may_answer(kind, tool, for_owners, stronger, where, asked, spoke)
        assert may_answer(kind, tool, for_owners, role, "here", asked, spoke)
        assert may_answer(kind, tool, for_owners, role, where, True, True)
        assert may_answer(kind, ORDINARY, for_owners, role, where, asked, spoke)
        assert where != "here" or may_answer(kind, ORDINARY, False, role, where, asked, spoke)
    assert seen > 50


def test_having_spoken_lets_nobody_approve() -> None:
    """It lets a guest say more where the agent has asked them, and nothing else."""
    for question, (role, where, asked, _) in itertools.product(QUESTIONS, ANSWERERS):
        more = may_answer(*question, role, where, asked, True)
        if more and not may_answer(*question, role, where, asked, False):
            assert (question[0], role in {"guest", "stranger"}, asked) == ("clarify", True, True)
