"""Pairing: codes, the first owner, requests of strangers, and what owners decide."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from sqlalchemy import insert, update

from adapters.door import Requester, SignInRefused
from adapters.messages import Choice
from gateway.access import pairing, rate_limits
from gateway.access.pairing import (
    ALPHABET,
    CODE_CHARS,
    CODES_PER_HOUR,
    NOTICES_PER_HOUR,
    PENDING_PER_ACCOUNT,
    Pairing,
)
from gateway.access.policy import Access, Owners
from gateway.access.web_door import WebDoor
from gateway.commands import pair, registry
from gateway.commands.registry import StatusFacts
from gateway.errors import NotFound
from gateway.pipeline.admission import Admissions, IntakeRules
from gateway.pipeline.intake import NAME_CHARS
from gateway.settings.tree import AccessSettings, QueueSettings, Settings
from gateway.storage import audit_log, schema
from gateway.storage.people import members
from gateway.storage.people.members import CODE_S, DECIDED_S
from gateway.storage.people.web_users import ChatLinks
from gateway.storage.queue import leases
from tests.support.door import TOKEN
from tests.support.gateway import Running, message, running, settings_of
from tests.support.recording_adapter import RecordingAdapter
from tests.support.storage import Store, admit, forget, inbound

PAIRING: dict[str, Any] = {"mode": "pairing", "owners": []}
ALLOWLIST: dict[str, Any] = {"mode": "allowlist", "owners": []}
OWNED = {"mode": "pairing", "owners": ["telegram:1"]}
CODE = re.compile(rf"`([{ALPHABET}]{{{CODE_CHARS}}})`")
ON = {"platforms": {"telegram": [{"token": "123:abc"}]}}


def code_of(text: str) -> str:
    """Return the code that a text holds."""
    [code] = CODE.findall(text)
    return str(code)


async def outbox(chat: Running, chat_id: str) -> list[Any]:
    """Return what was entered for a chat, whether it is sent or not."""
    rows = {row.id: row.chat for row in await chat.rows(schema.conversation)}
    return [row for row in await chat.rows(schema.outbox) if rows[row.conversation] == chat_id]


async def told(chat: Running, chat_id: str) -> list[str]:
    """Return the texts that were entered for a chat."""
    return [row.markdown or row.payload for row in await outbox(chat, chat_id)]


async def stranger(chat: Running, sender: str = "7", text: str = "hi", **fields: Any) -> str:
    """Write as a stranger in a direct chat; returns the newest text there, "" for none."""
    place, fields = f"dm{sender}", {"sender_name": "Ann", **fields}
    assert (await chat.say(text, place, sender=sender, **fields)).outcome == "denied"
    return (await told(chat, place) or [""])[-1]


async def owner(chat: Running, text: str, **fields: Any) -> str:
    """Write as the owner; returns the newest text in the owner's chat."""
    place = fields.pop("place", "own")
    await chat.say(text, place, sender="1", **fields)
    return (await told(chat, place))[-1]


async def own_code(chat: Running) -> str:
    """Start as `parley run` does with a bot; returns the code that it prints."""
    code = await printed_by(chat, settings_of(Path("/"), access=PAIRING, **ON))
    assert code is not None
    return code


async def printed_by(chat: Running, start: Settings, replica_id: int = 0) -> str | None:
    """Start, as this replica (or that of the gateway); returns what code is printed."""
    mine = replica_id or chat.gateway.replica.id
    return await pairing.owner_code(chat.gateway.database, start, mine)


async def age(chat: Running, seconds: float) -> None:
    """Let time pass for requests."""
    table = schema.pairing
    values = {"at": table.c.at - seconds, "expires_at": table.c.expires_at - seconds}
    await chat.execute(update(table).values(values))


class TestCodes:
    def test_codes_are_drawn_without_look_alikes(self) -> None:
        """Eight capital letters and digits, each time others."""
        codes = {pairing.new_code() for _ in range(500)}
        assert len(codes) == 500
        assert {len(code) for code in codes} == {CODE_CHARS} == {8}
        assert set("".join(codes)) == set(ALPHABET)
        assert not set(ALPHABET) & set("O0I1L")

    @given(st.data())
    def test_a_code_is_found_however_it_is_typed(self, data: st.DataObject) -> None:
        """Small letters, blanks, hyphens; alone or behind a command."""
        code = pairing.new_code()
        gaps = [data.draw(st.sampled_from(["", " ", "-", " - ", "\u2013"])) for _ in code]
        typed = "".join(a + b for a, b in zip(code, gaps, strict=True))
        before = data.draw(st.sampled_from(["", "/pair ", "/start ", "/Pair@my_bot  ", " "]))
        small = data.draw(st.booleans())
        assert pairing.code_in(before + (typed.lower() if small else typed)) == code

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "/pair",
            "/start",
            "ABCD234",
            "ABCD23456",
            "ABCD234O",
            "ABCD2345 please",
            "/pair approve ABCD2345",
            "/help ABCD2345",
            "ABCD 2345" + " " * 100 + "!",
            "\uff21BCD2345",
        ],
    )
    def test_other_texts_are_no_code(self, text: str) -> None:
        """Neither too short nor too long ones, nor other characters."""
        assert pairing.code_in(text) is None

    @given(st.text(max_size=80))
    def test_no_text_breaks_the_search(self, text: str) -> None:
        """What is found can be compared in constant time: it is ASCII."""
        code = pairing.code_in(text)
        assert code is None or set(code) <= set(ALPHABET)

    def test_codes_are_compared_as_a_whole(self) -> None:
        """Equal or not."""
        assert pairing.same_code("ABCD2345", "ABCD2345")
        assert not pairing.same_code("ABCD2345", "ABCD2346")


class TestFirstOwner:
    @pytest.mark.parametrize("form", ["{}", "/pair {}", "/start {}", "  {} "])
    async def test_who_sends_the_code_is_the_owner(self, tmp_path: Path, form: str) -> None:
        """They are told so and may do what owners may; it is in the log, the code is not."""
        async with running(tmp_path, access=PAIRING) as chat:
            code = await own_code(chat)
            typed = form.format(f"{code[:4]}-{code[4:]}".lower())
            assert (await chat.say(typed, sender="7")).outcome == "command"
            assert await chat.answers(1) == [pairing.OWNER_BOUND]
            assert chat.events("owner_bound") == [
                {"event": "owner_bound", "level": "info", "platform": "telegram", "sender": "7"}
            ]
            assert "(telegram 7): owner since" in await chat.ask("/pair list", sender="7")
            assert code not in str(chat.log)
            [row] = await chat.rows(schema.member)
            assert (row.sender, row.role, row.granted_by) == ("7", "owner", "code")

    async def test_who_becomes_owner_asks_no_longer(self, tmp_path: Path) -> None:
        """They wrote before they sent the code; nobody has to approve them any more."""
        async with running(tmp_path, access=PAIRING) as chat:
            code = await own_code(chat)
            await chat.say("hello?", sender="7")
            await chat.say(code, sender="7")
            assert await chat.rows(schema.pairing) == []

    async def test_a_code_is_used_once(self, tmp_path: Path) -> None:
        """Whoever comes second is a stranger, and the conversation has no title."""
        async with running(tmp_path, at_work=False, access=PAIRING) as chat:
            code = await own_code(chat)
            await chat.say(code, sender="7")
            assert "private" in await stranger(chat, "8", text=code)
            assert len(await chat.rows(schema.member)) == 1
            assert (await chat.rows(schema.conversation))[0].title == ""

    async def test_a_member_becomes_owner_with_it(self, tmp_path: Path) -> None:
        """Their other words are ordinary messages."""
        async with running(tmp_path, at_work=False, access={**PAIRING, "telegram": ["7"]}) as chat:
            code = await own_code(chat)
            assert (await chat.say("whatever", sender="7")).outcome == "queued"
            assert (await chat.say(code, sender="7")).outcome == "command"
            assert [row.role for row in await chat.rows(schema.member)] == ["owner"]

    async def test_the_next_start_prints_another_code(self, tmp_path: Path) -> None:
        """The one before is void."""
        async with running(tmp_path, at_work=False, access=PAIRING) as chat:
            old, new = await own_code(chat), await own_code(chat)
            await stranger(chat, text=old)
            assert await chat.rows(schema.member) == []
            assert (await chat.say(new, sender="8")).outcome == "command"

    @pytest.mark.parametrize(
        ("access", "sections"),
        [
            (ALLOWLIST, ON),
            ({**PAIRING, "mode": "open"}, ON),
            (OWNED, ON),
            (PAIRING, {}),
        ],
    )
    async def test_no_code_where_none_is_of_use(
        self, tmp_path: Path, access: dict[str, Any], sections: dict[str, Any]
    ) -> None:
        """And an earlier one is void."""
        async with running(tmp_path, at_work=False, access=PAIRING) as chat:
            await own_code(chat)
            start = settings_of(tmp_path, access=access, **sections)
            assert await printed_by(chat, start) is None
            assert await chat.rows(schema.pairing) == []

    @pytest.mark.thorough
    async def test_no_code_once_there_is_an_owner(self, tmp_path: Path) -> None:
        """Until that one is revoked."""
        async with running(tmp_path, at_work=False, access=PAIRING) as chat:
            await chat.say(await own_code(chat), sender="7")
            start = settings_of(tmp_path, access=PAIRING, **ON)
            assert await printed_by(chat, start) is None
            await chat.gateway.database.write(members.revoke, "telegram", "7")
            assert await printed_by(chat, start) is not None

    async def test_replicas_print_the_same_code(self, tmp_path: Path) -> None:
        """For as long as one of those lives that have printed it."""
        async with running(tmp_path, at_work=False, access=PAIRING) as chat:
            start = settings_of(tmp_path, access=PAIRING, **ON)
            first = await own_code(chat)
            other = await chat.gateway.database.write(leases.register, "another place")
            assert await printed_by(chat, start, other) == first == await own_code(chat)
            late = update(schema.replica).values(heartbeat_until=schema.now_s() - 1)
            await chat.execute(late)
            assert await printed_by(chat, start, other) != first

    @pytest.mark.parametrize(
        "fields", [{"chat_kind": "group"}, {"chat_kind": "thread"}, {"kind": "edit"}]
    )
    async def test_a_code_counts_in_a_direct_message_only(
        self, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        """Others could read it elsewhere."""
        async with running(tmp_path, at_work=False, access=PAIRING) as chat:
            await stranger(chat, text=await own_code(chat), **fields)
            assert await chat.rows(schema.member) == []

    @pytest.mark.parametrize("access", [ALLOWLIST, OWNED])
    async def test_a_code_of_other_settings_is_void(
        self, tmp_path: Path, access: dict[str, Any]
    ) -> None:
        """Also where it lies in the database still."""
        async with running(tmp_path, at_work=False, access=access) as chat:
            await stranger(chat, text=await own_code(chat))
            assert await chat.rows(schema.member) == []

    async def test_five_wrong_codes_in_an_hour(self, tmp_path: Path) -> None:
        """Then even the right one is refused, and the sender is told once; others may try."""
        async with running(tmp_path, at_work=False, access=PAIRING) as chat:
            code = await own_code(chat)
            assert "private" in await stranger(chat, text="ABCD2345", dedupe_key="try 0")
            for n in range(1, rate_limits.TRIES_PER_HOUR):
                wrong = await stranger(chat, text="ABCD2345", dedupe_key=f"try {n}")
                assert wrong == pairing.WRONG_CODE
            for _ in range(2):
                assert await stranger(chat, text=code) == pairing.CODES_REFUSED
            assert Counter(await told(chat, "dm7"))[pairing.CODES_REFUSED] == 1
            assert (await chat.say(code, sender="8")).outcome == "command"

    async def test_a_member_tells_no_code_to_the_model(self, tmp_path: Path) -> None:
        """While codes are refused it is not taken for a question, and not on record."""
        async with running(tmp_path, at_work=False, access=PAIRING | {"telegram": ["7"]}) as chat:
            code = await own_code(chat)
            for n in range(rate_limits.TRIES_PER_HOUR):
                await chat.say("ABCD2345", sender="7", dedupe_key=f"try {n}")
            assert (await chat.say(code, sender="7")).outcome == "refused"
            assert (await told(chat, "c1"))[-1] == pairing.CODES_REFUSED
            assert code not in [row.text for row in await chat.rows(schema.inbox)]

    async def test_fifty_wrong_codes_in_all(self, tmp_path: Path) -> None:
        """Then nobody's code is taken; who was not spoken to before gets their request."""
        async with running(tmp_path, at_work=False, access=PAIRING) as chat:
            code = await own_code(chat)
            for n in range(rate_limits.ALL_TRIES_PER_HOUR):
                await stranger(chat, f"{n % 10}", text="ABCD2345")
            assert "private" in await stranger(chat, "new", text=code)
            assert await stranger(chat, "new", text=code) == pairing.CODES_REFUSED
            assert await chat.rows(schema.member) == []

    async def test_a_wrong_code_that_comes_twice_is_one_try(self, tmp_path: Path) -> None:
        """The platform repeats what it is not sure about."""
        async with running(tmp_path, at_work=False, access=PAIRING) as chat:
            code = await own_code(chat)
            for _ in range(9):
                await chat.say("ABCD2345", sender="7", dedupe_key="same")
            assert (await chat.say(code, sender="7")).outcome == "command"


class TestRequests:
    async def test_a_stranger_gets_a_code_and_the_owner_two_buttons(self, tmp_path: Path) -> None:
        """Both name the same code; what the stranger wrote is nowhere but in quarantine."""
        async with running(tmp_path, access=OWNED) as chat:
            await chat.ask("hello", "own", sender="1")
            await chat.say("my secret", "dm7", sender="7", sender_name="Ann")
            [notice] = await chat.answers(1, "dm7")
            code = code_of(notice)
            assert (await chat.answers(2, "own"))[1] == (
                f"`Ann` (telegram 7) asks to be let in, code `{code}`."
            )
            [_, notice_of_it] = [each for each in chat.adapter.shown if each.address.chat == "own"]
            assert notice_of_it.choices == (
                Choice("Approve", f"/pair approve {code}"),
                Choice("Deny", f"/pair deny {code}"),
            )
            assert "Your id here is `7`" in notice
            assert "parley.yaml" not in notice
            assert [row.reason for row in await chat.rows(schema.quarantine)] == ["stranger"]
            assert "secret" not in str(await chat.rows(schema.outbox))
            [line] = chat.events("pairing_requested")
            assert (line["platform"], line["sender"]) == ("telegram", "7")

    async def test_without_an_owner_the_notice_says_how_to_become_one(self, tmp_path: Path) -> None:
        """By the code of the start, or by the settings."""
        async with running(tmp_path, at_work=False, access=PAIRING) as chat:
            assert "access.owners` to `['telegram:7']`" in await stranger(chat)

    async def test_one_code_an_hour(self, tmp_path: Path) -> None:
        """However much they write; afterwards another one."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            await owner(chat, "/help")
            first = await stranger(chat)
            for _ in range(3):
                assert await stranger(chat) == first
            assert len(await told(chat, "own")) == 2
            await age(chat, CODE_S + 1)
            assert code_of(await stranger(chat)) != code_of(first)
            assert len(await told(chat, "own")) == 3

    @pytest.mark.parametrize(
        ("access", "fields"),
        [
            (ALLOWLIST, {}),
            (PAIRING, {"chat_kind": "group"}),
            (PAIRING, {"chat_kind": "thread"}),
            (PAIRING, {"kind": "edit"}),
        ],
    )
    async def test_where_nobody_can_ask(
        self, tmp_path: Path, access: dict[str, Any], fields: dict[str, Any]
    ) -> None:
        """Not a word, and no request."""
        async with running(tmp_path, at_work=False, access=access) as chat:
            assert await stranger(chat, **fields) == ""
            assert await chat.rows(schema.pairing) == []
            assert await chat.rows(schema.conversation) == []

    async def test_names_are_shown_as_what_they_are(self, tmp_path: Path) -> None:
        """On one line, without markup and unseen characters, and not longer than needed."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            await owner(chat, "/help")
            name = "`[x](http://evil)`\n\u202e @here " + "y" * 100
            await stranger(chat, sender_name=name)
            [*_, notice] = await told(chat, "own")
            shown = notice.partition(" (telegram 7)")[0]
            assert shown.startswith("`'[x](http://evil)' @here yyy")
            assert shown.endswith("y…`")
            assert len(shown) == NAME_CHARS + 2

    async def test_every_owner_is_told_where_they_wrote_last(self, tmp_path: Path) -> None:
        """Settings' owners and those by code, each in one direct chat; a group is none."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            await chat.gateway.database.write(
                members.let_in, ("telegram", "2"), "Bo", "owner", "code"
            )
            await owner(chat, "/help", place="old")
            await owner(chat, "/help")
            await owner(chat, "/help", place="g", chat_kind="group")
            await chat.say("/help", "own2", sender="2")
            await stranger(chat)
            counts = [len(await told(chat, name)) for name in ("old", "own", "g", "own2")]
            assert counts == [1, 2, 1, 2]

    async def test_a_request_that_reaches_no_owner_is_in_the_log(self, tmp_path: Path) -> None:
        """The owner has never written to this bot, nor anybody in the web chat."""
        access = PAIRING | {"owners": ["telegram:1"]}
        async with running(tmp_path, access=access) as chat:
            await stranger(chat, "8")
            assert (await chat.logged("owners_not_reached"))["platform"] == "telegram"

    async def test_an_owner_without_a_chat_reads_it_in_the_web_chat(self, tmp_path: Path) -> None:
        """Where that is used; else `/pair list` tells."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            renderers: Any = chat.gateway.intake._owners.renderers
            renderers["web", "default"] = lambda text: [text]
            await stranger(chat)
            web = {"platform": "web", "sender": "web", "authenticated": True}
            await chat.say("/help", "w", **web)
            await stranger(chat, "8")
            assert "asks to be let in" in (await told(chat, "w"))[-1]
            await chat.say("/pair list", "w", **web)
            assert len(CODE.findall((await told(chat, "w"))[-1])) == 2

    async def test_owners_are_told_of_ten_an_hour(self, tmp_path: Path) -> None:
        """Then once that there are more."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            await owner(chat, "/help")
            for n in range(NOTICES_PER_HOUR + 3):
                await stranger(chat, f"s{n}")
            texts = (await told(chat, "own"))[1:]
            assert len(texts) == NOTICES_PER_HOUR + 1
            assert texts[-1] == pairing.MORE_REQUESTS
            assert texts.count(pairing.MORE_REQUESTS) == 1
            assert (await outbox(chat, "own"))[-1].choices is None

    async def test_the_oldest_of_many_requests_expire(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A flood does not push out more than it brings, and leaves no more rows than allowed."""
        monkeypatch.setattr(pairing, "PENDING_PER_ACCOUNT", 3)
        monkeypatch.setattr(pairing, "CODES_PER_HOUR", 5)
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            await owner(chat, "/help")
            notices = [await stranger(chat, f"s{n}") for n in range(8)]
            assert [bool(text) for text in notices] == [True] * 5 + [False] * 3
            listed = CODE.findall(await owner(chat, "/pair list"))
            assert listed == [code_of(text) for text in notices[2:5]]
            assert "no such code" in await owner(chat, f"/pair approve {code_of(notices[0])}")
            assert len(await chat.rows(schema.conversation)) == 6
        assert (PENDING_PER_ACCOUNT, CODES_PER_HOUR) == (100, 300)

    async def test_a_flood_does_not_fill_the_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Beyond a number in the hour, messages of strangers leave nothing behind."""
        monkeypatch.setattr(rate_limits, "STRANGERS_PER_HOUR", 3)
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            for n in range(6):
                await stranger(chat, f"s{n % 2}")
            assert len(await chat.rows(schema.quarantine)) == 3


class TestDecisions:
    async def test_an_approved_stranger_is_told_and_heard(self, tmp_path: Path) -> None:
        """The press of a button is the text; the owner reads that it is done."""
        async with running(tmp_path, access=OWNED) as chat:
            await chat.say("hi", "dm7", sender="7", sender_name="Ann")
            code = code_of((await chat.answers(1, "dm7"))[0])
            done = await chat.ask(f"/pair approve {code}", "own", sender="1")
            assert done == "`Ann` (telegram 7) may write to me now."
            assert (await chat.answers(2, "dm7"))[1] == pairing.APPROVED
            assert await chat.ask("hi again", "dm7", sender="7") == "re: hi again"
            [row] = await chat.rows(schema.member)
            assert (row.role, row.granted_by, row.sender_name) == ("member", "telegram:1", "Ann")
            [line] = chat.events("pairing_approved")
            assert (line["platform"], line["sender"], line["by"]) == ("telegram", "7", "telegram:1")

    async def test_approving_twice_is_harmless(self, tmp_path: Path) -> None:
        """It is said that it was done already, and the stranger is told once."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            code = code_of(await stranger(chat))
            await owner(chat, f"/pair approve {code}")
            assert await owner(chat, f"/pair approve {code.lower()}") == (
                "`Ann` (telegram 7) already has access."
            )
            assert "`pair revoke telegram:7`" in await owner(chat, f"/pair deny {code}")
            assert (await told(chat, "dm7"))[1:] == [pairing.APPROVED]
            assert len(chat.events("pairing_approved")) == 1

    async def test_who_is_denied_is_not_asked_for_a_day(self, tmp_path: Path) -> None:
        """Neither code nor notice, and nothing tells them."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            code = code_of(await stranger(chat))
            text = await owner(chat, f"/pair deny {code}")
            assert text == "`Ann` (telegram 7) is denied, and cannot ask again for a day."
            assert (
                await owner(chat, f"/pair deny {code}") == "`Ann` (telegram 7) was already denied."
            )
            await age(chat, CODE_S + 1)
            await stranger(chat)
            assert len(await told(chat, "dm7")) == 1
            await age(chat, DECIDED_S - CODE_S)
            assert code_of(await stranger(chat)) != code
            [line] = chat.events("pairing_denied")
            assert (line["sender"], line["by"]) == ("7", "telegram:1")

    async def test_a_denial_can_be_taken_back_while_the_code_holds(self, tmp_path: Path) -> None:
        """Two buttons beside one another are easily mistaken."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            code = code_of(await stranger(chat))
            await owner(chat, f"/pair deny {code}")
            assert "may write to me now" in await owner(chat, f"/pair approve {code}")

    async def test_a_member_becomes_an_owner_and_a_member_again(self, tmp_path: Path) -> None:
        """Each change is on record with who made it; the same again changes nothing."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            code = code_of(await stranger(chat))
            await owner(chat, f"/pair approve {code}")
            write = chat.gateway.database.write
            for role, words in (
                ("owner", "is an owner now"),
                ("owner", "is an owner already"),
                ("member", "is a member now"),
            ):
                said = await write(pairing.change_role, "telegram:7", role, "web:web")
                assert words in said.text
            [row] = await chat.rows(schema.member)
            assert (row.role, row.granted_by, row.sender_name) == ("member", "web:web", "Ann")
            with pytest.raises(NotFound):
                await write(pairing.change_role, "telegram:9", "owner", "web:web")
            changed = await write(audit_log.listed, 9, kind="member_role_changed")
            assert [each.detail["role"] for each in changed] == ["member", "owner"]

    async def test_who_is_revoked_is_a_stranger_again(self, tmp_path: Path) -> None:
        """They may ask again at once."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            code = code_of(await stranger(chat))
            await owner(chat, f"/pair approve {code}")
            assert (await chat.say("hi", "dm7", sender="7")).outcome == "queued"
            text = await owner(chat, "/pair revoke telegram:7")
            assert text == "telegram 7 may no longer write to me."
            assert code_of(await stranger(chat)) != code
            [line] = chat.events("member_revoked")
            assert (line["platform"], line["sender"], line["by"]) == ("telegram", "7", "telegram:1")

    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            ("/pair approve ABCD2345", "There is no such code, or it has expired."),
            ("/pair deny nonsense", "There is no such code, or it has expired."),
            ("/pair revoke telegram:9", "`telegram:9` was not let in by a code"),
            ("/pair revoke `x`", "`'x'` was not let in by a code"),
            ("/pair", "`/pair approve CODE`"),
            ("/pair approve", "`/pair approve CODE`"),
            ("/pair list all", "`/pair approve CODE`"),
            ("/pair@my_bot dance", "`/pair approve CODE`"),
        ],
    )
    async def test_what_cannot_be_done_is_said(
        self, tmp_path: Path, text: str, answer: str
    ) -> None:
        """In words that help."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            assert answer in await owner(chat, text)
            assert await chat.rows(schema.member) == []

    async def test_expired_codes_grant_nothing(self, tmp_path: Path) -> None:
        """An hour is an hour."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            code = code_of(await stranger(chat))
            await age(chat, CODE_S + 1)
            assert "expired" in await owner(chat, f"/pair approve {code}")
            assert await chat.rows(schema.member) == []

    async def test_pair_bypasses_the_queue(self, tmp_path: Path) -> None:
        """Also where that is full."""
        async with running(tmp_path, at_work=False, access=OWNED, queue={"max_pending": 1}) as chat:
            await chat.say("one", "own", sender="1")
            assert "nobody" in await owner(chat, "/pair list")

    @pytest.mark.parametrize("kind", ["group", "thread"])
    async def test_pair_is_for_direct_chats(self, tmp_path: Path, kind: str) -> None:
        """Codes and names are nobody else's business."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            code = code_of(await stranger(chat))
            text = await owner(chat, f"/pair approve {code}", place="g", chat_kind=kind)
            assert text == registry.DIRECT_ONLY
            assert await chat.rows(schema.member) == []

    async def test_for_others_there_is_no_such_command(self, tmp_path: Path) -> None:
        """A member's `/pair` is an unknown command; guests and strangers grant nothing."""
        access = {**OWNED, "telegram": ["7"]}
        async with running(tmp_path, access=access) as chat:
            code = code_of(await stranger(chat, "8"))
            text = f"/pair approve {code}"
            told = await chat.ask(text, sender="7")
            assert told.startswith("I know no command `/pair`. `/help` lists")
            await stranger(chat, "8", text=text)
            assert await chat.rows(schema.member) == []

    @pytest.mark.parametrize(("sender", "knows"), [("1", True), ("7", False)])
    async def test_help_tells_owners_alone(self, tmp_path: Path, sender: str, knows: bool) -> None:
        """And only where they are alone."""
        async with running(tmp_path, at_work=False, access={**OWNED, "telegram": ["7"]}) as chat:
            await chat.say("/help", "a", sender=sender)
            await chat.say("/help", "g", sender=sender, chat_kind="group")
            assert ("`/pair`" in (await told(chat, "a"))[0]) is knows
            assert "`/pair`" not in (await told(chat, "g"))[0]

    async def test_lists_are_cut(self, tmp_path: Path) -> None:
        """The newest requests, the first members; the command line has them all."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            for n in range(pair.LISTED + 2):
                await stranger(chat, f"s{n}")
                await chat.gateway.database.write(
                    members.let_in, ("telegram", f"m{n}"), "Bo", "member", "code"
                )
            text = await owner(chat, "/pair list")
            assert len(CODE.findall(text)) == pair.LISTED
            assert text.count("and 2 more") == 2
            assert "(telegram s1)" not in text
            assert "(telegram s21)" in text

    async def test_whose_account_is_off_is_told_later(self, tmp_path: Path) -> None:
        """At a start with it, once."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            code = code_of(await stranger(chat))
            renderers: Any = chat.gateway.intake._owners.renderers
            render = renderers.pop(("telegram", "default"))
            await chat.gateway.database.write(pairing.approve, code, "command line")
            await chat.gateway.intake.tell_approved()
            assert len(await told(chat, "dm7")) == 1
            renderers["telegram", "default"] = render
            for _ in range(2):
                await chat.gateway.intake.tell_approved()
            assert (await told(chat, "dm7"))[1:] == [pairing.APPROVED]

    async def test_a_forgotten_conversation_takes_its_request_along(self, tmp_path: Path) -> None:
        """Its code is void, and who was there may ask again."""
        async with running(tmp_path, at_work=False, access=OWNED) as chat:
            code = code_of(await stranger(chat))
            await chat.gateway.database.write(forget, 1)
            assert "no such code" in await owner(chat, f"/pair approve {code}")
            assert await chat.rows(schema.pairing) == []
            assert code_of(await stranger(chat)) != code


LINK = re.compile(r"https://chat\.example/#sign-in=([0-9a-f]{43})\n")
WEB = {"public_url": "https://chat.example", "token": TOKEN}


class TestInvitations:
    async def test_an_owner_gets_a_link_that_works_once(self, tmp_path: Path) -> None:
        """In the own direct chat; on record with who asked, and without the secret."""
        async with running(tmp_path, access=OWNED, web=WEB) as chat:
            text = await owner(chat, "/pair invite ann guest")
            assert "signs **ann** in to the web chat, once, within a day" in text
            [conversation] = await chat.rows(schema.conversation)
            links = ChatLinks(SecretStr(TOKEN))
            [secret] = LINK.findall(links.shown(text, conversation.id))
            assert secret not in str(chat.log)
            assert chat.events("web_user_invited") == [
                {"event": "web_user_invited", "level": "info", "user": "ann"}
            ]
            database = chat.gateway.database
            door = WebDoor(database, Access(AccessSettings()), None)
            signed_in = await door.sign_in("link", secret, Requester("192.0.2.1"))
            assert (signed_in.visitor.name, signed_in.visitor.role) == ("ann", "guest")
            with pytest.raises(SignInRefused):
                await door.sign_in("link", secret, Requester("192.0.2.1"))
            [row, *_] = await chat.rows(schema.audit_rows)
            assert row.kind == "web_user_invited"
            assert '"telegram:1"' in row.said
            assert secret not in row.said

    async def test_who_is_there_gets_another_link(self, tmp_path: Path) -> None:
        """For ten minutes, in the role that they have; a role is not changed unseen."""
        async with running(tmp_path, access=OWNED, web=WEB) as chat:
            await owner(chat, "/pair invite ann")
            assert "within 10 minutes" in await owner(chat, "/pair invite ann")
            assert "within 10 minutes" in await owner(chat, "/pair invite owner")
            assert "is a web user already" in await owner(chat, "/pair invite ann owner")
            users = await chat.rows(schema.web_user)
            assert [(each.name, each.role, each.invited_by) for each in users] == [
                ("ann", "member", "telegram:1")
            ]
            kinds = [row.kind for row in await chat.rows(schema.audit_rows)]
            assert kinds == ["web_user_invited", "web_link_made", "web_link_made"]

    async def test_the_web_chat_invites_as_well(self, tmp_path: Path) -> None:
        """It is a chat like others; its owner is one."""
        async with running(tmp_path, adapter=RecordingAdapter("web"), web=WEB) as chat:
            fields = {"platform": "web", "sender": "web", "authenticated": True}
            assert LINK.search(await chat.ask("/pair invite ann", **fields))

    @pytest.mark.parametrize("said", ["ann boss", "ann guest now", "", "Ann"])
    async def test_what_makes_no_sense_makes_no_link(self, tmp_path: Path, said: str) -> None:
        """It is said how it is done."""
        async with running(tmp_path, access=OWNED, web=WEB) as chat:
            text = await owner(chat, f"/pair invite {said}")
            assert "/pair invite NAME" in text or "is no name for a web user" in text
            assert await chat.rows(schema.web_link) == []

    async def test_nobody_else_gets_one(self, tmp_path: Path) -> None:
        """Not in a group, where others read it; not who is no owner; not for a page that is off."""
        access = OWNED | {"telegram": ["2"]}
        async with running(tmp_path, access=access, web=WEB) as chat:
            text = await owner(
                chat, "/pair invite ann", place="g1", chat_kind="group", addressed="direct"
            )
            assert text == registry.DIRECT_ONLY
            await chat.say("/pair invite ann", "dm2", sender="2")
            assert await chat.rows(schema.web_link) == []
        off = WEB | {"enabled": False}
        async with running(tmp_path / "off", access=OWNED, web=off) as chat:
            assert await owner(chat, "/pair invite ann") == pair.SWITCHED_OFF


def test_buttons_fit_everywhere() -> None:
    """Telegram's callback data has 64 bytes."""
    request = members.PairingRequest(1, "W" * 8, "telegram", "a", "7", "Ann", 1, "pending", "", 1.0)
    _, choices = pairing.request_notice(request)
    for choice in choices:
        assert len(choice.text.encode()) <= 64


def admissions_of(access: dict[str, Any]) -> Admissions:
    """Return what admits messages in a transaction."""
    rules = IntakeRules(
        access=Access(AccessSettings.model_validate(access)),
        queue=QueueSettings(),
        groups="per_user",
        model=lambda _: StatusFacts("m", 1000, None, "compressor", 10),
    )
    renderers = {("telegram", "default"): lambda text: [text]}
    it = Pairing(Owners(rules.access, renderers), rate_limits.AdmissionLimits(60))
    return Admissions(rules, it)


updates = st.lists(
    st.fixed_dictionaries({
        "text": st.sampled_from([
            "hi",
            "",
            "/new",
            "/stop",
            "/start",
            "OWN",
            "/start OWN",
            "MINE",
            "/pair MINE",
            "/pair approve MINE",
            "/pair revoke telegram:1",
            "ABCD2345",
        ]),
        "sender": st.sampled_from(["7", "8"]),
        "chat": st.sampled_from(["7", "g"]),
        "kind": st.sampled_from(["message", "edit"]),
        "chat_kind": st.sampled_from(["dm", "group", "thread"]),
        "addressed": st.sampled_from(["direct", "thread", "overheard"]),
        "message_ref": st.sampled_from([None, "m1"]),
    }),
    max_size=12,
)
rules = st.fixed_dictionaries({
    "mode": st.sampled_from(["pairing", "allowlist"]),
    "groups": st.dictionaries(
        st.sampled_from(["*", "telegram:g"]),
        st.fixed_dictionaries({
            "respond": st.sampled_from(["mention", "always", "never"]),
            "context": st.booleans(),
        }),
    ),
})


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(updates, rules)
def test_nothing_a_stranger_sends_is_worked_on(
    store: Store, sent: list[dict[str, Any]], access: dict[str, Any]
) -> None:
    """Whatever the order: no queued row, no turn, no member; with codes of others, old and own."""
    own = pairing.new_code()
    with store.undoing() as conn:
        # A conversation of the owner in the group, where strangers may be overheard.
        group = inbound(chat="g", sender="1", chat_kind="group", message_ref="m1")
        admit(conn, group, state="done")
        members.set_owner_code(conn, own)
        members.set_owner_code(conn, pairing.new_code())
        at = admissions_of({**access, "owners": ["telegram:1"]})
        for fields in sent:
            mine = next((each.code for each in members.pending(conn)), "ABCD2345")
            text = fields["text"].replace("OWN", own).replace("MINE", mine)
            outcome = at.admit(conn, inbound(**{**fields, "text": text})).admission.outcome
            assert outcome in {"denied", "noted", "ignored"}
        states = {row.state for row in conn.execute(schema.inbox.select())}
        assert states <= {"done", "noted"}
        assert conn.execute(schema.turn.select()).all() == []
        assert members.everybody(conn) == []


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 3 * DECIDED_S), st.sampled_from(["pending", "denied"]))
def test_a_code_grants_within_its_hour_only(store: Store, passed_s: float, state: str) -> None:
    """However old a request is, and whether it was denied before."""
    with store.undoing() as conn:
        place, _ = admit(conn, inbound(sender="7"), state="done")
        now = schema.now_s()
        conn.execute(
            insert(schema.pairing).values(
                code="ABCD2345",
                platform="telegram",
                account="default",
                sender="7",
                conversation=place,
                state=state,
                at=now - passed_s,
                expires_at=now - passed_s + (CODE_S if state == "pending" else DECIDED_S),
            )
        )
        if passed_s < CODE_S - 1:
            assert pairing.approve(conn, "abcd-2345", "x").happened is not None
        elif passed_s > CODE_S:
            with pytest.raises(NotFound):
                pairing.approve(conn, "ABCD2345", "x")
            assert members.everybody(conn) == []


async def test_no_code_is_ever_logged(tmp_path: Path) -> None:
    """Neither of requests nor of owners, right or wrong, at no level."""
    async with running(tmp_path, at_work=False, access=PAIRING) as chat:
        own = await own_code(chat)
        requests = [code_of(await stranger(chat, sender)) for sender in ("7", "8")]
        await stranger(chat, text="WRNG2345")
        await chat.say(f"/start {own}", "own", sender="1")
        await owner(chat, f"/pair approve {requests[0]}")
        await owner(chat, f"/pair deny {requests[1]}")
        await owner(chat, "/pair approve WRNG2345")
        await owner(chat, "/pair list")
        log = str(chat.log)
        assert len(chat.events("message_admitted")) == 8
        assert not [code for code in (own, *requests, "WRNG2345") if code in log]


async def test_a_rolled_back_request_is_made_again(tmp_path: Path) -> None:
    """Windows count a message once, so that the repeated transaction says the same."""
    async with running(tmp_path, at_work=False, access=OWNED) as chat:
        await owner(chat, "/help")
        broken = [message("hi", "dm7", sender="7"), message("x", sender="1", chat=None)]  # type: ignore[arg-type]
        await chat.gateway.intake.accept(broken)
        assert len(await told(chat, "dm7")) == 1
        reasons = [row.reason for row in await chat.rows(schema.quarantine)]
        assert (len(reasons), reasons[0]) == (2, "stranger")
