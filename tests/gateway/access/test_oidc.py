"""The identity provider: what it must show before anybody is taken for somebody."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import orjson
import pytest
import pytest_asyncio
from pydantic import SecretStr

from adapters.door import ProviderAnswer, ProviderUnreachable, Requester, SignInRefused
from adapters.web.platform import WebSettings
from agent.models.recovery import Rests
from gateway.access import oidc, web_door
from gateway.access.oidc import Identity, Provider, entry_for, identity_provider
from gateway.access.policy import Access
from gateway.access.web_door import ADDRESS_TRIES_PER_MIN, WebDoor
from gateway.errors import SettingsError
from gateway.settings.references import References
from gateway.settings.tree import AccessSettings, Settings
from gateway.storage import schema
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from gateway.storage.people import web_users
from gateway.supervision.credentials import Rotation
from tests.support.door import TOKEN
from tests.support.oidc_server import CLIENT, PERSON, SECRET, OidcServer

HERE = Requester("192.0.2.1", browser="Firefox")
PUBLIC = "http://127.0.0.1:8765"
BACK = f"{PUBLIC}/sign-in/oidc/callback"
ALLOWED = {"email:ann@Example.org": "member"}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class At:
    """A door with a provider, and a browser in front of it."""

    door: WebDoor
    provider: OidcServer
    database: Database
    clock: Clock

    async def went(self) -> ProviderAnswer:
        """Return what a browser comes back with that was led out and has signed in there."""
        errand = await self.door.lead_out()
        async with (
            aiohttp.ClientSession() as http,
            http.get(errand.url, allow_redirects=False) as response,
        ):
            assert response.status == 302, await response.text()
            back = urlsplit(response.headers["Location"])
        assert back._replace(query="").geturl() == BACK
        told = {name: values[0] for name, values in parse_qs(back.query).items()}
        return ProviderAnswer(errand.secret, told["state"], told.get("code", ""), told["iss"])

    async def refused(self, answer: ProviderAnswer | None = None) -> str:
        """Return why nobody is signed in by what a browser comes back with."""
        with pytest.raises(SignInRefused):
            await self.door.come_back(answer or await self.went(), HERE)
        return str((await self.records())[-1][2])

    async def records(self) -> list[Any]:
        rows = await self.database.read(lambda conn: list(conn.execute(schema.audit_rows.select())))
        return [[row.kind, *orjson.loads(row.said)[:3:2]] for row in rows]


def settings(provider: OidcServer, **changes: Any) -> WebSettings:
    named = {"issuer": provider.issuer, "client_id": CLIENT, "client_secret": SECRET}
    block = named | {"allowed": ALLOWED} | changes
    return WebSettings.model_validate({"auth": "oidc", "oidc": block, "public_url": PUBLIC})


async def door_to(database: Database, web: WebSettings, clock: Clock) -> WebDoor:
    access = Access(AccessSettings(), web)
    provider = Provider(web.oidc, web.callback_url, clock)
    return WebDoor(database, access, SecretStr(TOKEN), clock, provider)


@pytest_asyncio.fixture
async def at(tmp_path: Path) -> AsyncIterator[At]:
    """A door whose provider lets one address in."""
    clock = Clock()
    async with OidcServer().running() as provider, open_database(tmp_path / "p.db") as database:
        provider.redirects.add(BACK)
        door = await door_to(database, settings(provider), clock)
        yield At(door, provider, database, clock)
        assert provider.violations == []


async def test_whom_the_provider_names_is_signed_in(at: At) -> None:
    """By one question about itself, one about its keys, and one for each code; on record."""
    names = []
    for _ in range(2):
        signed_in = await at.door.come_back(await at.went(), HERE)
        names.append(signed_in.visitor.name)
        assert await at.door.session(signed_in.secret) == signed_in.visitor
    assert (names, signed_in.visitor.role) == (["ann", "ann"], "member")
    asked = {"/.well-known/openid-configuration": 1, "/jwks": 1, "/token": 2}
    assert at.provider.asked == asked | {"/authorize": 2}
    assert await at.records() == [
        ["web_user_invited", "oidc", "ann"],
        ["web_signed_in", "web:ann", "oidc"],
        ["web_signed_in", "web:ann", "oidc"],
    ]


async def test_somebody_is_who_they_are_by_issuer_and_subject(at: At) -> None:
    """Another address or name changes nothing; another subject of the same name is another one."""
    first = await at.door.come_back(await at.went(), HERE)
    at.provider.person["preferred_username"] = "Mrs. Ann"
    again = await at.door.come_back(await at.went(), HERE)
    at.provider.person |= {"sub": "2", "preferred_username": "ann"}
    other = await at.door.come_back(await at.went(), HERE)
    names = [each.visitor.name for each in (first, again, other)]
    assert names == ["ann", "ann", "ann-2"]


async def test_a_provider_gives_nobody_the_name_of_somebody_else(at: At) -> None:
    """Not of who was invited, nor of who was removed: their chats are theirs."""
    await at.database.write(web_door.invite, "ann", "member", None)
    await at.database.write(web_door.remove, "ann")
    at.provider.person["preferred_username"] = "Ann"
    assert (await at.door.come_back(await at.went(), HERE)).visitor.name == "ann-2"
    at.provider.person |= {"sub": "2", "preferred_username": "owner"}
    assert (await at.door.come_back(await at.went(), HERE)).visitor.name == "owner-2"
    at.provider.person |= {"sub": "3", "preferred_username": "/../Ü7"}
    assert (await at.door.come_back(await at.went(), HERE)).visitor.name == "user"


@pytest.mark.parametrize("state", ["", "made-up", "ü"])
async def test_another_state_is_refused(at: At, state: str) -> None:
    """Whoever has a code of their own cannot sign somebody else in with it."""
    mine = await at.went()
    assert await at.refused(ProviderAnswer(mine.secret, state, mine.code, mine.issuer)) == (
        "oidc_state"
    )
    assert "/token" not in at.provider.asked


async def age(at: At, seconds: float) -> None:
    """Let time pass for sessions, and for what the door remembers."""
    began = schema.web_session.update().values(at=schema.web_session.c.at - seconds)
    await at.database.write(lambda conn: conn.execute(began).close())


async def test_a_session_ends_after_its_hours(at: At) -> None:
    """However much it is used: what the provider says of groups is not believed for longer."""
    at.provider.person |= {"groups": ["family"]}
    web = settings(at.provider, allowed={"group:family": "owner"}, session_hours=2)
    at.door = await door_to(at.database, web, at.clock)
    cookie = (await at.door.come_back(await at.went(), HERE)).secret
    for _ in range(3):
        visitor = await at.door.session(cookie)
        assert visitor is not None
        assert visitor.role == "owner"
        await age(at, 2400)
    assert await at.door.session(cookie) is None
    assert await at.database.read(web_users.sessions, web.oidc.session_s) == []
    at.provider.person |= {"groups": []}
    assert await at.refused() == "oidc_not_let_in"


async def test_the_hours_are_of_no_other_session(at: At) -> None:
    """Who came by link or token was never said to be somebody by the provider."""
    cookie = (await at.door.sign_in("token", TOKEN, HERE)).secret
    await age(at, 29 * 86_400)
    assert await at.door.session(cookie) is not None


async def test_the_clients_secret_is_replaced_while_it_runs(at: At, tmp_path: Path) -> None:
    """It is read again by `parley config reload --secrets`; the next sign-in shows the new one."""
    (tmp_path / "secret").write_text(SECRET)
    told = settings(at.provider, client_secret=f"file:{tmp_path}/secret")
    whole = References({}).resolved(Settings(home=tmp_path, web=told))
    at.door = await door_to(at.database, whole.web, at.clock)
    assert (await at.door.come_back(await at.went(), HERE)).visitor.name == "ann"
    at.provider.secret = "another-c1ient-secret"
    assert await at.refused() == "oidc_code"
    assert at.provider.violations == ["token: client authentication"]
    at.provider.violations.clear()
    (tmp_path / "secret").write_text(at.provider.secret)
    done = await Rotation(whole, [], Rests()).reload()
    assert (done.renewed, done.restart) == (("web.oidc.client_secret",), ())
    assert (await at.door.come_back(await at.went(), HERE)).visitor.name == "ann"


async def test_another_browser_is_refused(at: At) -> None:
    """With the cookie of another errand an answer is worth nothing."""
    mine, other = await at.went(), await at.went()
    stolen = ProviderAnswer(other.secret, mine.state, mine.code, mine.issuer)
    assert await at.refused(stolen) == "oidc_state"


async def test_another_site_uses_up_nobodys_tries(at: At) -> None:
    """It can have a browser come back, but without the cookie: in a picture, say."""
    mine = await at.went()
    for _ in range(ADDRESS_TRIES_PER_MIN + 1):
        with pytest.raises(SignInRefused, match="does not say who you are"):
            await at.door.come_back(ProviderAnswer("", mine.state, mine.code, mine.issuer), HERE)
    rows = await at.database.read(lambda conn: list(conn.execute(schema.audit_rows.select())))
    assert rows == []
    assert (await at.door.come_back(mine, HERE)).visitor.name == "ann"


async def test_a_code_is_bound_to_its_errand(at: At) -> None:
    """A code of another browser does not fit the verifier (PKCE)."""
    mine, other = await at.went(), await at.went()
    swapped = ProviderAnswer(mine.secret, mine.state, other.code, mine.issuer)
    assert await at.refused(swapped) == "oidc_code"


async def test_a_code_is_taken_once(at: At) -> None:
    """Also with the cookie of its browser."""
    answer = await at.went()
    await at.door.come_back(answer, HERE)
    assert await at.refused(answer) == "oidc_code"


async def test_another_issuer_is_refused(at: At) -> None:
    """Its answer is not even asked about."""
    mine = await at.went()
    foreign = ProviderAnswer(mine.secret, mine.state, mine.code, "https://evil.example")
    assert await at.refused(foreign) == "oidc_issuer"


async def test_who_does_not_want_to_is_not_signed_in(at: At) -> None:
    """The provider sends them back without a code."""
    at.provider.denies = True
    assert await at.refused() == "oidc_denied"


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "of another errand"},
        {"nonce": None},
        {"aud": "another-client"},
        {"aud": ["another-client"]},
        {"aud": None},
        {"aud": [CLIENT, "another-client"]},
        {"aud": "another-client", "azp": CLIENT},
        {"azp": "another-client"},
        {"aud": [CLIENT, "another-client"], "azp": "another-client"},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"exp": 1_700_000_000},
        {"exp": None},
        {"exp": "never"},
        {"nbf": 4_000_000_000},
        {"iat": 4_000_000_000},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"},
    ],
    ids=str,
)
async def test_a_token_that_is_not_for_this_errand_is_refused(
    at: At, claims: dict[str, Any]
) -> None:
    """It names the nonce, us, the provider, and holds now."""
    at.provider.claims = claims
    assert await at.refused() == "oidc_token"


@pytest.mark.parametrize("sign", ["none", "HS256", "another"])
async def test_a_token_that_the_provider_has_not_signed_is_refused(at: At, sign: str) -> None:
    """Unsigned, by the public key as a shared one, by a key of somebody else under our id."""
    at.provider.sign = sign
    assert await at.refused() == "oidc_token"


async def test_new_keys_are_fetched_when_one_is_unknown(at: At) -> None:
    """Once: a token of the old key does not have them fetched each time."""
    await at.door.come_back(await at.went(), HERE)
    at.provider.rotate()
    assert (await at.door.come_back(await at.went(), HERE)).visitor.name == "ann"
    assert at.provider.asked["/jwks"] == 2
    await at.door.come_back(await at.went(), HERE)
    assert at.provider.asked["/jwks"] == 2


@pytest.mark.parametrize("verified", [False, None, "true", 1])
async def test_an_address_counts_if_it_is_verified(at: At, verified: Any) -> None:
    """Else anybody could write somebody's address into their account."""
    at.provider.person["email_verified"] = verified
    assert await at.refused() == "oidc_not_let_in"


async def test_who_is_not_on_the_list_is_told_so(at: At) -> None:
    """No user is made; the owner finds in the audit log whom to add."""
    at.provider.person |= {"email": "eve@example.org"}
    with pytest.raises(SignInRefused, match=r"you are eve@example\.org\. Nobody of that name"):
        await at.door.come_back(await at.went(), HERE)
    rows = await at.database.read(lambda conn: list(conn.execute(schema.audit_rows.select())))
    [said] = [orjson.loads(row.said) for row in rows]
    assert said[3] == {"identity": f"{at.provider.issuer} {PERSON['sub']}"}


async def test_who_was_removed_stays_out(at: At) -> None:
    """An owner's word counts more than the list, until the next invitation."""
    cookie = (await at.door.come_back(await at.went(), HERE)).secret
    await at.database.write(web_door.remove, "ann")
    assert await at.door.session(cookie) is None
    assert await at.refused() == "oidc_not_let_in"
    await at.database.write(web_door.invite, "ann", "guest", None)
    back = await at.door.come_back(await at.went(), HERE)
    assert (back.visitor.name, back.visitor.role) == ("ann", "member")


async def test_the_list_of_today_says_what_somebody_is(at: At) -> None:
    """Whoever is taken off it is nobody from the next start on, session or not."""
    cookie = (await at.door.come_back(await at.went(), HERE)).secret
    for allowed, role in ((ALLOWED, "member"), ({"email:ann@Example.org": "owner"}, "owner")):
        later = await door_to(at.database, settings(at.provider, allowed=allowed), at.clock)
        visitor = await later.session(cookie)
        assert visitor is not None
        assert visitor.role == role
    for web in (settings(at.provider, allowed={"subject:x": "owner"}), WebSettings()):
        access = Access(AccessSettings(), web)
        visitor = await WebDoor(at.database, access, None).session(cookie)
        assert visitor is not None
        assert visitor.role == "stranger"
        standings = await at.database.read(access.standings, ["web:ann"])
        assert standings == {"stranger"}


async def test_what_the_token_does_not_say_is_asked_for(at: At) -> None:
    """Many providers tell addresses and groups only there; it must be about the same person."""
    at.provider.person = {"sub": "9"}
    at.provider.told_if_asked = {"email": "ann@example.org", "email_verified": True}
    assert (await at.door.come_back(await at.went(), HERE)).visitor.name == "ann"
    at.provider.told_if_asked["sub"] = "10"
    assert await at.refused() == "oidc_userinfo"


async def test_an_address_is_verified_by_who_tells_it(at: At) -> None:
    """The token may hold one that somebody wrote themselves; what is verified is another one."""
    at.provider.person = {"sub": "9", "email": "ann@example.org"}
    at.provider.told_if_asked = {"email": "eve@example.org", "email_verified": True}
    assert await at.refused() == "oidc_not_let_in"


async def test_a_provider_that_is_down_costs_no_try(at: At) -> None:
    """The page says so, links still work, and it is not asked by everybody who comes meanwhile."""
    answer = await at.went()
    at.provider.is_down = True
    for _ in range(2 * ADDRESS_TRIES_PER_MIN):
        with pytest.raises(ProviderUnreachable, match="parley open"):
            await at.door.come_back(answer, HERE)
    link = (await at.database.write(web_door.new_link)).secret
    assert (await at.door.sign_in("link", link, HERE)).visitor.name == "owner"


async def test_a_provider_that_has_not_told_of_itself_is_left_alone_for_a_while(at: At) -> None:
    """However many ask; it is asked again when it has had a rest."""
    at.provider.is_down = True
    for _ in range(5):
        with pytest.raises(ProviderUnreachable):
            await at.door.lead_out()
    assert at.provider.asked == {"/.well-known/openid-configuration": 1}
    at.provider.is_down = False
    at.clock.now += oidc.REST_S
    assert (await at.door.lead_out()).url.startswith(f"{at.provider.issuer}/authorize?")


async def test_tries_are_counted(at: At) -> None:
    """What comes back wrong is a try like a wrong token."""
    wrong = ProviderAnswer("another", "", "", "")
    for _ in range(ADDRESS_TRIES_PER_MIN):
        assert await at.refused(wrong) == "oidc_state"
    with pytest.raises(SignInRefused) as refused:
        await at.door.come_back(await at.went(), HERE)
    assert refused.value.retry_after_s == 60


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://id.example.org/token"},
        {"jwks_uri": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"userinfo_endpoint": "ftp://id.example.org/"},
    ],
    ids=str,
)
async def test_a_provider_that_contradicts_itself_is_not_asked(
    at: At, metadata: dict[str, Any]
) -> None:
    """It must be who the settings say, and nobody may read along."""
    at.provider.metadata = metadata
    with pytest.raises(ProviderUnreachable):
        await at.door.lead_out()


@pytest.mark.parametrize(
    ("allowed", "entry"),
    [
        (["email:ANN@example.org"], "email:ANN@example.org"),
        (["group:x", "subject:7", "group:staff"], "subject:7"),
        (["group:staff", "email:ann@example.org"], "group:staff"),
        (["group:ann@example.org", "subject:ann@example.org", "email:7", "group:STAFF"], None),
        ([], None),
    ],
)
def test_the_first_entry_that_fits_counts(allowed: list[str], entry: str | None) -> None:
    """A group or a subject that looks like an address is none."""
    identity = Identity("https://id.example.org", "7", "ann@example.org", ("staff",))
    assert entry_for(identity, dict.fromkeys(allowed, "member")) == entry


def test_without_the_library_a_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(oidc, "import_module", missing)
    with pytest.raises(SettingsError, match=r"pip install 'parley\[oidc\]'"):
        identity_provider(WebSettings.model_validate({"auth": "oidc"}))
    assert identity_provider(WebSettings()) is None
