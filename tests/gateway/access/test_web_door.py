"""The web chat's door: links, the token, sessions, invitations, and wrong tries."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from pydantic import SecretStr
from sqlalchemy import Connection, update

from adapters.door import OWNER, Requester, SignedInAlready, SignInRefused, Visitor
from gateway.access import web_door
from gateway.access.policy import Access
from gateway.access.web_door import (
    ADDRESS_TRIES_PER_MIN,
    STRANGERS_TRIES_PER_MIN,
    TRIES_PER_MIN,
    WebDoor,
    is_made,
)
from gateway.errors import GatewayError, NotFound, StorageUnavailable
from gateway.settings.tree import AccessSettings
from gateway.storage import schema
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from gateway.storage.people import members, web_users
from gateway.storage.schema import now_s, web_link, web_session
from tests.support.door import TOKEN
from tests.support.storage import raw_bytes

HERE = Requester("192.0.2.1", browser="Firefox")


def with_session(secret: str) -> Requester:
    """Return a request of a browser that shows the secret of a session."""
    return replace(HERE, session=secret)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Doors:
    """A door, its database and its clock."""

    door: WebDoor
    database: Database
    clock: Clock

    async def link(self, name: str = "owner") -> str:
        return (await self.database.write(web_door.new_link, name)).secret

    async def invited(self, name: str, role: Any = "member", same_as: str | None = None) -> str:
        return (await self.database.write(web_door.invite, name, role, same_as)).secret

    async def wrong(self, address: str) -> int | None:
        """Try a wrong token; returns how long to wait, None where it was looked at."""
        with pytest.raises(SignInRefused) as refused:
            await self.door.token("wrong", Requester(address))
        return refused.value.retry_after_s


@pytest_asyncio.fixture
async def at(tmp_path: Path) -> AsyncIterator[Doors]:
    """A door with a token, on a database of its own."""
    clock = Clock()
    async with open_database(tmp_path / "parley.db") as database:
        access = Access(AccessSettings())
        yield Doors(WebDoor(database, access, SecretStr(TOKEN), clock), database, clock)


async def test_a_link_signs_in_once(at: Doors) -> None:
    """Whoever comes second has nothing of it."""
    secret = await at.link()
    signed_in = await at.door.sign_in("link", secret, HERE)
    owner = Visitor(OWNER.sender, "owner", "owner", has_session=True)
    assert signed_in.visitor == owner
    assert await at.door.session(signed_in.secret) == owner
    with pytest.raises(SignInRefused, match="has been used or has expired"):
        await at.door.sign_in("link", secret, HERE)


async def test_a_link_expires(at: Doors) -> None:
    """After ten minutes, whether it was used or not."""
    secret = await at.link()
    await at.database.write(_age, web_link.c.expires_at, web_door.LINK_S)
    with pytest.raises(SignInRefused):
        await at.door.sign_in("link", secret, HERE)


def _age(conn: Connection, column: Any, seconds: float) -> None:
    conn.execute(update(column.table).values({column.name: column - seconds}))


async def test_a_session_holds_for_as_long_as_it_is_used(at: Doors) -> None:
    """Thirty days from its last use on; each use an hour later is noted."""
    secret = (await at.door.sign_in("token", TOKEN, HERE)).secret
    for column in (web_session.c.used_at, web_session.c.expires_at):
        await at.database.write(_age, column, web_users.SESSION_S - 60)
    assert await at.door.session(secret)
    left = await at.database.read(
        lambda conn: conn.execute(
            web_session.select().with_only_columns(web_session.c.expires_at - now_s())
        ).scalar_one()
    )
    assert left == pytest.approx(web_users.SESSION_S, abs=60)
    await at.database.write(_age, web_session.c.expires_at, web_users.SESSION_S + 1)
    assert await at.door.session(secret) is None


async def test_a_sign_in_ends_the_browsers_session_of_before(at: Doors) -> None:
    """Its secret is a new one each time."""
    first = await at.door.sign_in("token", TOKEN, HERE)
    second = await at.door.sign_in("link", await at.link(), with_session(first.secret))
    assert await at.door.session(first.secret) is None
    assert await at.door.session(second.secret) is not None


async def test_signing_out_and_revoking_end_a_session_at_once(at: Doors) -> None:
    """One by its number, all of a user by their name; others go on."""
    mine, hers = await at.link(), await at.invited("ann")
    made = [(await at.door.sign_in("link", each, HERE)).secret for each in (mine, hers)]
    await at.door.sign_out(with_session(made[0]))
    assert await at.door.session(made[0]) is None
    assert await at.door.session(made[1]) is not None
    [session] = await at.database.read(web_users.sessions, 86_400.0)
    assert (session.sender, session.address, session.browser) == ("ann", "192.0.2.1", "Firefox")
    ended = await at.database.write(web_door.revoke, str(session.id))
    assert (ended.name, ended.sessions) == ("ann", 1)
    assert await at.door.session(made[1]) is None
    again = (await at.door.sign_in("link", await at.link("ann"), HERE)).secret
    assert (await at.database.write(web_door.revoke, "ann")).sessions == 1
    assert await at.door.session(again) is None


async def test_a_browser_may_call_itself_anything(at: Doors) -> None:
    """A header need not be UTF-8; what of it is none comes as halves of pairs."""
    caller = Requester("192.0.2.1", browser="Fire\udcffox")
    signed_in = await at.door.sign_in("link", await at.link(), caller)
    [session] = await at.database.read(web_users.sessions, 86_400.0)
    assert (signed_in.visitor.name, session.browser) == ("owner", "Fire\ufffdox")


async def test_a_full_disk_keeps_nobody_out(at: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """That a session is used cannot be noted; whose it is can be read."""
    begun = await at.door.sign_in("token", TOKEN, HERE)
    await at.database.write(lambda conn: conn.execute(update(web_session).values(used_at=0)))

    def note_use(_conn: Connection, _session: int) -> None:
        raise StorageUnavailable("the disk is full")

    monkeypatch.setattr(web_users, "note_use", note_use)
    assert await at.door.session(begun.secret) == begun.visitor


async def test_no_secret_is_stored(at: Doors, tmp_path: Path) -> None:
    """A copy of the database signs nobody in."""
    unused, used = await at.link(), await at.link()
    cookie = (await at.door.sign_in("link", used, HERE)).secret
    stored = raw_bytes(tmp_path / "parley.db")
    assert [each for each in (unused, used, cookie, TOKEN) if each.encode() in stored] == []


async def test_somebody_who_is_removed_is_out(at: Doors) -> None:
    """Sessions and links end; a new invitation says that the chats of before are theirs."""
    link = await at.invited("ann", "owner")
    cookie = (await at.door.sign_in("link", link, HERE)).secret
    waiting = await at.link("ann")
    ended = await at.database.write(web_door.remove, "ann")
    assert (ended.sessions, ended.removed) == (1, True)
    assert await at.door.session(cookie) is None
    with pytest.raises(SignInRefused):
        await at.door.sign_in("link", waiting, HERE)
    with pytest.raises(NotFound):
        await at.link("ann")
    assert (await at.database.write(web_door.invite, "ann", "guest", None)).again
    with pytest.raises(GatewayError, match="the owner cannot be removed"):
        await at.database.write(web_door.remove, "owner")


async def test_a_web_user_may_be_somebody_elsewhere(at: Doors) -> None:
    """Their role is the one there, also what it becomes later."""
    await at.database.write(members.let_in, ("telegram", "7"), "Ann", "member", "code")
    cookie = await at.door.sign_in("link", await at.invited("ann", "guest", "telegram:7"), HERE)
    assert cookie.visitor.role == "member"
    await at.database.write(members.revoke, "telegram", "7")
    seen = await at.door.session(cookie.secret)
    assert seen is not None
    assert seen.role == "stranger"


@pytest.mark.parametrize(
    "name", ["", "web", "owner", "Ann", "a/b", "a b", "-a", "a" * 33, "ä", "123"]
)
async def test_names_are_plain(at: Doors, name: str) -> None:
    """They stand in addresses and on command lines; two are taken, numbers are sessions."""
    with pytest.raises(GatewayError, match="is no name for a web user"):
        await at.invited(name)


@pytest.mark.parametrize("same_as", ["", "telegram", "telegram:", "web:web", "telegram:a b", "x:1"])
async def test_who_somebody_is_elsewhere_must_be_an_identity(at: Doors, same_as: str) -> None:
    """Of a platform that there is; the web chat itself is none."""
    with pytest.raises(GatewayError, match="must be PLATFORM:ID"):
        await at.invited("ann", "member", same_as)


async def test_a_name_is_invited_once(at: Doors) -> None:
    """A second invitation would change somebody's role unseen."""
    await at.invited("ann")
    with pytest.raises(GatewayError, match="is a web user already"):
        await at.invited("ann", "owner")


async def test_one_address_has_few_tries(at: Doors) -> None:
    """Then its right token is not looked at either, for a minute."""
    for _ in range(ADDRESS_TRIES_PER_MIN):
        assert await at.wrong("192.0.2.1") is None
    with pytest.raises(SignInRefused) as refused:
        await at.door.token(TOKEN, Requester("192.0.2.1"))
    assert refused.value.retry_after_s == 60
    assert await at.door.token(TOKEN, Requester("192.0.2.2")) == OWNER
    at.clock.now = 60
    assert await at.door.token(TOKEN, Requester("192.0.2.1")) == OWNER


async def test_many_addresses_have_no_more_tries_than_ten_a_minute(at: Doors) -> None:
    """And cannot use up those of an address from which somebody has signed in."""
    assert await at.door.token(TOKEN, Requester("198.51.100.1")) == OWNER
    looked_at = [await at.wrong(f"192.0.2.{n}") is None for n in range(100)]
    assert sum(looked_at) == STRANGERS_TRIES_PER_MIN
    assert await at.door.token(TOKEN, Requester("198.51.100.1")) == OWNER
    known = [await at.wrong("198.51.100.1") is None for _ in range(10)]
    assert sum(looked_at + known) == TRIES_PER_MIN


async def test_what_parley_made_is_not_locked_out_by_guesses(at: Doors) -> None:
    """Links, sessions and a token of 256 bits: whatever else was tried, from the same address."""
    link, made = await at.link(), secrets.token_urlsafe(32)
    session = (await at.door.sign_in("link", await at.link(), HERE)).secret
    for _ in range(ADDRESS_TRIES_PER_MIN + 1):
        await at.wrong(HERE.address)
    assert (await at.door.sign_in("link", link, HERE)).visitor.name == "owner"
    assert await at.door.session(session)
    door = WebDoor(at.database, Access(AccessSettings()), SecretStr(made), at.clock)
    for _ in range(3 * TRIES_PER_MIN):
        for wrong in ("wrong", made[:-1]):
            with pytest.raises(SignInRefused) as refused:
                await door.token(wrong, HERE)
            assert refused.value.retry_after_s is None
    assert await door.token(made, HERE) == OWNER


async def test_a_link_is_not_guessed_at_a_cost(at: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong ones are read, and written to the record ten times a minute."""
    writes: list[Any] = []
    write = at.database.write

    async def counted(*asked: Any) -> Any:
        writes.append(asked)
        return await write(*asked)

    monkeypatch.setattr(at.database, "write", counted)
    for n in range(50):
        with pytest.raises(SignInRefused, match="has been used or has expired"):
            await at.door.sign_in("link", f"guess{n}", HERE)
    assert len(writes) == TRIES_PER_MIN


@pytest.mark.parametrize(
    ("secret", "made"),
    [
        ("nq2w1Zk_c7Yd-0hJ8vXbLr5TgM3sEoKfUa9iPyQ4RtA", True),
        (TOKEN, False),
        ("correct-horse-battery-staple-correct-horse1", False),
        ("a" * 43, False),
        ("nq2w1Zk_c7Yd-0hJ8vXbLr5TgM3sEoKfUa9iPyQ4RtAx", False),
        ("", False),
    ],
)
def test_a_secret_that_parley_makes_is_known_by_its_form(secret: str, *, made: bool) -> None:
    """Everything else a person may have chosen."""
    assert is_made(secret) is made


async def test_a_link_for_another_user_asks_first(at: Doors) -> None:
    """It replaces who is signed in only if the person agrees; until then it works."""
    owner = (await at.door.sign_in("link", await at.link(), HERE)).secret
    link = await at.invited("ann")
    for instead_of in ("", "ann", "eve"):
        with pytest.raises(SignedInAlready) as found:
            await at.door.sign_in("link", link, with_session(owner), instead_of)
        assert (found.value.name, found.value.link_for) == ("owner", "ann")
    assert await at.door.session(owner)
    ann = await at.door.sign_in("link", link, with_session(owner), "owner")
    assert ann.visitor.name == "ann"
    assert await at.door.session(owner) is None
    again = await at.door.sign_in("link", await at.link("ann"), with_session(ann.secret))
    assert again.visitor.name == "ann"


async def test_right_ones_cost_no_tries(at: Doors) -> None:
    """A program shows its token with each request."""
    for _ in range(3 * TRIES_PER_MIN):
        assert await at.door.token(TOKEN, HERE) == OWNER


async def test_who_came_in_is_on_record(at: Doors) -> None:
    """With addresses, and without a secret."""
    link = await at.invited("ann")
    cookie = (await at.door.sign_in("link", link, HERE)).secret
    assert await at.wrong("192.0.2.9") is None
    await at.door.sign_out(with_session(cookie))
    await at.database.write(web_door.revoke, "ann")
    await at.database.write(web_door.remove, "ann")
    rows = await at.database.read(lambda conn: list(conn.execute(schema.audit_rows.select())))
    said = [(row.kind, *orjson.loads(row.said)[:3]) for row in rows]
    assert said == [
        ("web_user_invited", "command line", "", "ann"),
        ("web_signed_in", "web:ann", "192.0.2.1", "link"),
        ("web_sign_in_refused", "", "192.0.2.9", "wrong_token"),
        ("web_signed_out", "web:ann", "192.0.2.1", ""),
        ("web_sessions_revoked", "command line", "", "ann"),
        ("web_user_removed", "command line", "", "ann"),
    ]


async def test_links_are_on_record(at: Doors) -> None:
    """With who asked for one; the start's own is not, nor is any secret."""
    made = [
        await at.link(),
        (await at.database.write(web_door.new_link, "owner", 600.0, "telegram:7")).secret,
    ]
    rows = await at.database.read(lambda conn: list(conn.execute(schema.audit_rows.select())))
    assert [(row.kind, *orjson.loads(row.said)[:3:2]) for row in rows] == [
        ("web_link_made", "telegram:7", "owner")
    ]
    assert not any(secret in row.said for secret in made for row in rows)


async def test_refusals_are_on_record_ten_times_a_minute(at: Doors) -> None:
    """Of all addresses: tries must not fill the disk."""
    for _ in range(3 * ADDRESS_TRIES_PER_MIN):
        await at.wrong("192.0.2.1")
    looked_at = ["wrong_token"] * ADDRESS_TRIES_PER_MIN
    assert await kinds_of(at) == looked_at + ["too_many"] * (TRIES_PER_MIN - len(looked_at))
    for n in range(300):
        await at.wrong(f"198.51.100.{n % 250}")
    assert len(await kinds_of(at)) == TRIES_PER_MIN
    at.clock.now = 60
    await at.wrong("192.0.2.1")
    assert len(await kinds_of(at)) == TRIES_PER_MIN + 1


async def kinds_of(at: Doors) -> list[str]:
    """Return why sign-ins were refused, in order."""
    rows = await at.database.read(lambda conn: list(conn.execute(schema.audit_rows.select())))
    return [orjson.loads(row.said)[2] for row in rows]


async def test_without_a_token_none_is_right(tmp_path: Path) -> None:
    """Also not an empty one."""
    async with open_database(tmp_path / "parley.db") as database:
        door = WebDoor(database, Access(AccessSettings()), None)
        with pytest.raises(SignInRefused):
            await door.token("", HERE)


def test_the_first_owner_has_a_name() -> None:
    """Of others the id is what is known everywhere."""
    people = ("web:web", "web:ben", "telegram:web", "command line", "?")
    called = ["web:owner", "web:ben", "telegram:web", "command line", "?"]
    assert [web_door.called(each) for each in people] == called
