"""What a message or an interaction means: pure decoding, no server."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.discord.buttons import (
    ANSWERABLE_S,
    Callback,
    Interaction,
    snowflake_at,
    snowflake_s,
    to_interaction,
)
from adapters.discord.inbound import (
    DM,
    MAX_TITLE_CHARS,
    ChannelKind,
    Reading,
    kind_of,
    title_of,
    to_inbound,
)
from adapters.discord.platform import DiscordSettings
from adapters.messages import Address, InboundMessage, Poison

SETTINGS = DiscordSettings(name="main")
ANN = {"id": "7", "username": "ann", "global_name": "Ann"}
BEN = {"id": "8", "username": "ben", "global_name": None}
PARLEY = {"id": "42", "username": "parley", "bot": True}
CHANNEL = Reading(SETTINGS, "42", ChannelKind(guild="900"))
THREAD = Reading(SETTINGS, "42", ChannelKind(parent="100", opens_threads=False, guild="900"))
DIRECT = Reading(SETTINGS, "42", DM)


def payload(text: str = "", **fields: Any) -> dict[str, Any]:
    return {"id": "500", "channel_id": "100", "type": 0, "author": ANN, "content": text} | fields


def read(
    text: str = "", scene: Reading = DIRECT, settings: DiscordSettings = SETTINGS, **fields: Any
) -> InboundMessage:
    message = to_inbound(payload(text, **fields), replace(scene, settings=settings))
    assert isinstance(message, InboundMessage)
    return message


def mention(
    text: str, scene: Reading = CHANNEL, settings: DiscordSettings = SETTINGS, **fields: Any
) -> InboundMessage:
    return read(f"<@42> {text}", scene, settings, mentions=[PARLEY], **fields)


def test_a_direct_message() -> None:
    """It carries sender, address, text and its own raw JSON with fields that nobody knows."""
    message = read("hello", novelty=1)
    assert message.address == Address("discord", "main", "100")
    assert (message.chat_kind, message.sender, message.sender_name) == ("dm", "7", "Ann")
    assert (message.text, message.dedupe_key, message.message_ref) == ("hello", "500", "500")
    assert (message.kind, message.addressed) == ("message", "direct")
    assert json.loads(message.raw)["novelty"] == 1
    assert message.unreadable is None
    assert not message.authenticated


@pytest.mark.parametrize(
    ("author", "member", "name"),
    [
        (ANN, {"nick": "Annie"}, "Annie"),
        (ANN, {"nick": None}, "Ann"),
        (BEN, None, "ben"),
        ({"id": "7"}, None, "7"),
    ],
)
def test_the_best_name_of_a_sender(author: Any, member: Any, name: str) -> None:
    """The name in the server, else the shown name, else the user name, else the id."""
    assert read("x", author=author, member=member).sender_name == name


def test_a_mention_in_a_channel_opens_a_thread() -> None:
    """The conversation's thread has the message's id; the mention is not part of the text."""
    message = mention("what is this?")
    assert message.address == Address("discord", "main", "100", "500")
    assert (message.chat_kind, message.addressed) == ("thread", "direct")
    assert message.text == "what is this?"


def test_a_mention_where_threads_are_off() -> None:
    """Without `threads` the conversation is the channel."""
    message = mention("hi", settings=DiscordSettings(name="main", threads=False))
    assert (message.address.thread, message.chat_kind) == (None, "group")


def test_a_mention_where_no_thread_can_be_opened() -> None:
    """The text chat of a voice channel has no threads: it is answered there."""
    assert (
        mention("hi", Reading(SETTINGS, "42", ChannelKind(opens_threads=False))).address.thread
        is None
    )


def test_talk_in_a_channel_is_overheard() -> None:
    """It is handed on as not for the bot."""
    message = read("hello all", CHANNEL)
    assert (message.addressed, message.address.thread) == ("overheard", None)
    assert message.chat_kind == "group"


def test_talk_in_a_thread() -> None:
    """In a thread no mention is needed; the address names the channel above it."""
    message = read("and then?", THREAD, channel_id="300")
    assert message.address == Address("discord", "main", "100", "300")
    assert (message.chat_kind, message.addressed) == ("thread", "thread")


def test_a_mention_in_a_thread_opens_nothing() -> None:
    """It is direct, and stays in the thread."""
    message = mention("hi", THREAD, channel_id="300")
    assert (message.address.thread, message.addressed) == ("300", "direct")


@pytest.mark.parametrize("fields", [{"mentions": [BEN]}, {"mention_roles": ["77"]}])
def test_a_thread_message_to_others(fields: dict[str, Any]) -> None:
    """Whoever mentions only others in a thread does not talk to the bot."""
    assert read("<@8> you?", THREAD, channel_id="300", **fields).addressed == "overheard"


def test_a_forum_post() -> None:
    """Its first message has the thread's id and lies inside of it."""
    message = mention("help", THREAD, id="300", channel_id="300")
    assert message.address == Address("discord", "main", "100", "300")


def test_a_role_of_the_bot_is_the_bot() -> None:
    """Mentioning a role that the bot has is mentioning it."""
    scene = Reading(SETTINGS, "42", ChannelKind(), roles=frozenset({"55"}))
    message = read("<@&55> hi", scene, mention_roles=["55"])
    assert (message.addressed, message.text) == ("direct", "hi")


@pytest.mark.parametrize("lead", ["<@42>", "<@!42>", "  <@42>,", "<@42>:"])
def test_only_the_leading_mention_is_cut(lead: str) -> None:
    """Another one later stays, by name."""
    message = read(f"{lead} ask <@42>", CHANNEL, mentions=[PARLEY])
    assert message.text == "ask @parley"


def test_nothing_but_a_mention() -> None:
    """It keeps the name: a message without text could not be answered."""
    assert read("<@42>", CHANNEL, mentions=[PARLEY]).text == "@parley"


def test_markup_becomes_what_people_see() -> None:
    """Mentions, channels, roles, emoji and commands are shown as names; unknown ones stay."""
    names = {"@&1": "staff", "#2": "general"}
    text = "<@8> <@&1> <#2> <a:wave:99> </new:5> <@9>"
    message = read(text, Reading(SETTINGS, "42", DM, name_of=names.get), mentions=[BEN])
    assert message.text == "@ben @staff #general :wave: /new <@9>"


def test_a_nickname_in_a_mention() -> None:
    """People mentioned are called as they are called in that server."""
    assert read("<@8>", mentions=[BEN | {"member": {"nick": "Benny"}}]).text == "@Benny"


def test_a_reply_quotes_what_it_answers() -> None:
    """The other message comes first, quoted line by line."""
    said = {"id": "3", "author": BEN, "content": "one\n<@7>", "mentions": [ANN]}
    message = read("why?", type=19, referenced_message=said)
    assert message.text == "> one\n> @Ann\n\nwhy?"


def test_a_long_quote_is_cut() -> None:
    """A quote is context, not a second message."""
    message = read("why?", type=19, referenced_message={"author": BEN, "content": "x" * 600})
    assert message.text == "> " + "x" * 499 + "…\n\nwhy?"


def test_a_command_gets_no_quote() -> None:
    """A command has to stand in front."""
    said = {"author": BEN, "content": "one"}
    assert read("/new", type=19, referenced_message=said).text == "/new"


@pytest.mark.parametrize("said", [None, {"content": "gone"}])
def test_a_reply_to_nobody(said: Any) -> None:
    """What was answered may be deleted, or come without an author."""
    assert read("why?", CHANNEL, type=19, referenced_message=said).addressed == "overheard"


def test_a_reply_to_the_bot_is_for_the_bot() -> None:
    """Also without a ping."""
    message = read("why?", CHANNEL, type=19, referenced_message={"author": PARLEY, "content": "a"})
    assert (message.addressed, message.text) == ("direct", "> a\n\nwhy?")


REPLIED: dict[str, Any] = {"author": BEN, "content": "one"}


@pytest.mark.parametrize(
    ("text", "replied", "authors"),
    [
        ("why?", REPLIED, ("8",)),
        ("why?", REPLIED | {"author": ANN}, ()),
        ("why?", REPLIED | {"author": PARLEY}, ()),
        ("why?", {"content": "gone"}, ("?",)),
        ("why?", REPLIED | {"content": " "}, ()),
        ("/new", REPLIED, ()),
        ("", REPLIED, ()),
    ],
)
def test_whose_words_a_reply_holds(text: str, replied: Any, authors: tuple[str, ...]) -> None:
    """Those of who is quoted; the sender's and the bot's own are nobody else's."""
    assert read(text, type=19, referenced_message=replied).authors == authors


def test_a_forwarded_message() -> None:
    """It is quoted whole, with its files."""
    file = {"id": "9", "filename": "a.txt", "size": 1, "url": "https://cdn.discordapp.com/a"}
    inside = {"content": "said elsewhere", "attachments": [file]}
    snapshots = [{"message": inside}]
    message = read("", message_reference={"type": 1}, message_snapshots=snapshots)
    assert message.text == "> said elsewhere"
    # Discord does not say who wrote it.
    assert (message.authors, message.attachments[0].authors) == (("?",), ("?",))
    assert [item.name for item in message.attachments] == ["a.txt"]
    assert message.unreadable is None


CARD: dict[str, Any] = {
    "type": "rich",
    "title": "Build failed",
    "description": "step 7: disk full",
    "fields": [{"name": "branch", "value": "main", "inline": True}],
}
PAGE = {"type": "article", "title": "News", "description": "of today", "url": "https://e.org"}
WORDS = "Build failed\nstep 7: disk full\nbranch: main"
LINES = "> Build failed\n> step 7: disk full\n> branch: main"
IN_FORWARD = [{"message": {"content": "", "embeds": [CARD]}}]
BUILD = {
    "title": "Build 7",
    "url": "https://ci.e.org/7",
    "description": "failed",
    "footer": {"text": "since 9:00", "icon_url": "https://ci.e.org/i.png"},
}
BUILD_LINES = "> Build 7 (https://ci.e.org/7)\n> failed\n> since 9:00"
FORWARD = {"message_reference": {"type": 1}, "message_snapshots": IN_FORWARD}


@pytest.mark.parametrize(
    ("said", "fields", "text"),
    [
        ("why?", {"referenced_message": {"embeds": [CARD]}}, f"{LINES}\n\nwhy?"),
        (
            "why?",
            {"referenced_message": {"content": "see", "embeds": [CARD]}},
            f"> see\n{LINES}\n\nwhy?",
        ),
        ("why?", {"referenced_message": {"embeds": [{"title": "A"}, {}]}}, "> A\n\nwhy?"),
        ("why?", {"referenced_message": {"embeds": [PAGE]}}, "> News\n> of today\n\nwhy?"),
        ("why?", {"referenced_message": {"message_snapshots": IN_FORWARD}}, f"{LINES}\n\nwhy?"),
        ("why?", {"referenced_message": {"embeds": [{"author": {"name": "CI"}}]}}, "> CI\n\nwhy?"),
        ("explain", FORWARD, f"{LINES}\n\nexplain"),
        ("", FORWARD, LINES),
        ("", {"embeds": [CARD]}, WORDS),
        ("look", {"embeds": [CARD]}, f"look\n\n{WORDS}"),
        ("look", {"embeds": [PAGE]}, "look\n\n> News\n> of today"),
        ("/new", {"embeds": [PAGE]}, "/new"),
        ("/new", {"referenced_message": {"embeds": [CARD]}}, "/new"),
        ("hi", {"embeds": [{"type": "image", "url": "https://e.org/a.png"}]}, "hi"),
        ("", {"embeds": [BUILD]}, "Build 7 (https://ci.e.org/7)\nfailed\nsince 9:00"),
        ("why?", {"referenced_message": {"embeds": [BUILD]}}, f"{BUILD_LINES}\n\nwhy?"),
        ("", {**FORWARD, "message_snapshots": [{"message": {"embeds": [BUILD]}}]}, BUILD_LINES),
        ("", {"embeds": [{"title": "A", "url": None, "footer": None}]}, "A"),
        ("hi", {"embeds": [{"url": "https://e.org", "footer": {}}]}, "hi"),
        ("", {"embeds": [{"footer": {"text": "page 1 of 2"}}]}, "page 1 of 2"),
    ],
)
def test_the_words_of_embeds(said: str, fields: dict[str, Any], text: str) -> None:
    """Title with its address, text, fields and foot: of a message, its quote, its forward."""
    message = read(said, **fields)
    assert (message.text, message.unreadable) == (text, None)


def test_the_words_of_a_linked_page_are_not_the_senders() -> None:
    """Discord wrote them; a bot's own card is its own."""
    assert read("look", embeds=[PAGE]).authors == ("?",)
    assert read("look", embeds=[CARD]).authors == ()


PICTURE = {"id": "9", "filename": "a.png", "url": "https://cdn.discordapp.com/a", "size": 1}
SHOWN: dict[str, Any] = {"id": "11", "author": BEN, "attachments": [PICTURE]}


@pytest.mark.parametrize(
    ("said", "fields", "found"),
    [
        ("what is it?", {"referenced_message": SHOWN}, [("11", (BEN["id"],))]),
        ("what is it?", {"referenced_message": SHOWN | {"author": ANN}}, [("11", ())]),
        ("what is it?", {"referenced_message": SHOWN | {"author": PARLEY}}, [("11", ())]),
        (
            "what is it?",
            {"referenced_message": SHOWN | {"attachments": [PICTURE, PICTURE]}},
            [("11", (BEN["id"],))] * 2,
        ),
        (
            "compare",
            {"referenced_message": SHOWN, "attachments": [PICTURE]},
            [("500", ()), ("11", (BEN["id"],))],
        ),
        (
            "what is it?",
            {
                "referenced_message": {
                    "id": "11",
                    "author": BEN,
                    "message_snapshots": [{"message": {"attachments": [PICTURE]}}],
                }
            },
            [("11", ("?",))],
        ),
        ("what is it?", {"referenced_message": SHOWN | {"author": None}}, [("11", ("?",))]),
        ("/new", {"referenced_message": SHOWN}, []),
        ("", {"referenced_message": SHOWN}, []),
        ("what is it?", {"referenced_message": {"author": BEN, "content": "x"}}, []),
    ],
)
def test_the_files_of_the_message_that_is_answered(
    said: str, fields: dict[str, Any], found: list[tuple[str, tuple[str, ...]]]
) -> None:
    """They are looked up in that message, and are its author's."""
    files = read(said, type=19, **fields).attachments
    assert [(json.loads(file.ref)["message"], file.authors) for file in files] == found


def test_files_are_not_taken_from_what_people_answer_among_themselves() -> None:
    """Only what is said to the bot brings the file."""
    assert read("nice", CHANNEL, type=19, referenced_message=SHOWN).attachments == ()


def test_an_edit_is_a_version_of_its_own() -> None:
    """It is keyed by its time, and names the message that it changes."""
    edited = payload("hello!", edited_timestamp="2026-01-01T00:00:00+00:00")
    message = to_inbound(edited, DIRECT, edited=True)
    assert isinstance(message, InboundMessage)
    assert (message.kind, message.message_ref) == ("edit", "500")
    assert message.dedupe_key == "500:e2026-01-01T00:00:00+00:00"


def test_an_edit_of_what_opened_a_thread() -> None:
    """It belongs to the thread, also when the mention was taken out."""
    edited = payload("hello!", edited_timestamp="2026-01-01T00:00:00+00:00", flags=32)
    message = to_inbound(edited, CHANNEL, edited=True)
    assert isinstance(message, InboundMessage)
    assert message.address.thread == "500"


@pytest.mark.parametrize(
    "update",
    [
        payload("a link", edited_timestamp=None),
        {"id": "500", "channel_id": "100", "edited_timestamp": "2026-01-01T00:00:00+00:00"},
        [],
    ],
)
def test_an_update_that_is_no_edit(update: Any) -> None:
    """Link previews and partial updates change no words."""
    assert to_inbound(update, DIRECT, edited=True) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"author": PARLEY},
        {"author": {"id": "43", "username": "other", "bot": True}},
        {"author": {"id": "44", "username": "Discord", "system": True}},
        {"webhook_id": "9"},
        {"type": 18},
        {"type": 21},
        {"type": 7},
    ],
)
def test_what_nobody_said(fields: dict[str, Any]) -> None:
    """The bot itself, other bots, webhooks and Discord's own messages are left aside."""
    assert to_inbound(payload("x", **fields), DIRECT) is None


def test_a_bot_that_is_listened_to() -> None:
    """`allow_bots` makes another bot a person."""
    other = {"id": "43", "username": "other", "bot": True}
    settings = DiscordSettings(name="main", allow_bots=("43",))
    assert read("hi", settings=settings, author=other).sender == "43"


def test_without_the_message_content_intent() -> None:
    """Only direct chats and mentions can be read; the rest comes empty and is left aside."""
    settings = DiscordSettings(name="main", message_content=False)
    assert to_inbound(payload(""), replace(CHANNEL, settings=settings)) is None
    assert to_inbound(payload("", channel_id="300"), replace(THREAD, settings=settings)) is None
    assert read("hi", settings=settings).text == "hi"
    assert mention("hi", settings=settings).text == "hi"


FILE = {"id": "9", "filename": "a.bin", "size": 3, "url": "https://cdn.discordapp.com/x"}


@pytest.mark.parametrize(
    ("extra", "flags", "kind", "mime"),
    [
        ({"content_type": "image/png"}, 0, "image", "image/png"),
        (
            {"content_type": "audio/ogg", "waveform": "AA", "duration_secs": 1.0},
            8192,
            "voice",
            None,
        ),
        ({"content_type": "audio/ogg"}, 8192, "voice", None),
        ({"content_type": "audio/mpeg"}, 0, "audio", None),
        ({"content_type": "video/mp4"}, 0, "video", None),
        ({"content_type": "text/plain; charset=utf-8"}, 0, "file", "text/plain"),
        ({}, 0, "file", ""),
    ],
)
def test_files(extra: dict[str, Any], flags: int, kind: str, mime: str | None) -> None:
    """Each has its kind, and where to find it also when its link has expired."""
    message = read("", flags=flags, attachments=[FILE | extra])
    (file,) = message.attachments
    assert (file.kind, file.name, file.size_bytes) == (kind, "a.bin", 3)
    assert mime is None or file.mime == mime
    place = {"channel": "100", "message": "500", "id": "9", "url": FILE["url"]}
    assert json.loads(file.ref) == place
    assert message.unreadable is None


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"sticker_items": [{"id": "1", "name": "wave"}]}, "a sticker"),
        ({"poll": {"question": {"text": "?"}}}, "a poll"),
        ({"activity": {"type": 1}}, "an invitation to an activity"),
        ({}, "an empty message"),
    ],
)
def test_what_cannot_be_read(fields: dict[str, Any], what: str) -> None:
    """The sender gets told what it was."""
    assert read("", **fields).unreadable == what


def test_what_no_database_takes() -> None:
    """NUL and lone surrogates are replaced."""
    assert read("a\x00b\ud800c").text == "a\ufffdb\ufffdc"


@pytest.mark.parametrize("broken", [{"author": 5}, {"id": "5x"}, {"content": ["x"]}])
def test_what_cannot_be_decoded_is_poison(broken: dict[str, Any]) -> None:
    """It is kept whole, with the reason and a key of its own."""
    item = to_inbound(payload("x") | broken, DIRECT)
    assert isinstance(item, Poison)
    assert item.source == "discord:main:100"
    assert json.loads(item.raw) == payload("x") | broken
    assert next(iter(broken)) in item.reason


def test_optional_fields_that_are_null() -> None:
    """Null says as much as a field that is missing."""
    names = ("mentions", "mention_roles", "attachments", "sticker_items")
    lists: dict[str, Any] = dict.fromkeys(names)
    message = read("hi", flags=None, poll=None, message_snapshots=None, type=None, **lists)
    assert (message.text, message.attachments, message.unreadable) == ("hi", (), None)
    assert read("", content=None, sticker_items=[{}]).unreadable == "a sticker"


def test_ids_that_are_numbers() -> None:
    """They are ids all the same."""
    data: dict[str, Any] = {"id": 500, "channel_id": 100, "author": ANN | {"id": 7}}
    message = read("hi", mention_roles=[5], **data)
    assert (message.dedupe_key, message.sender, message.address.chat) == ("500", "7", "100")


def test_a_file_without_a_link() -> None:
    """It is told like others; the link is looked up when it is fetched."""
    message = read("see", attachments=[{"id": "9", "filename": "a.txt", "size": None}])
    assert [file.name for file in message.attachments] == ["a.txt"]


def test_a_reply_to_somebody_else_in_a_thread() -> None:
    """It is between people, also where the reply pings nobody; a reply to oneself is not."""
    to_ben = read("no, you", THREAD, type=19, referenced_message={"content": "x", "author": BEN})
    to_self = read("or", THREAD, type=19, referenced_message={"content": "x", "author": ANN})
    assert (to_ben.addressed, to_self.addressed) == ("overheard", "thread")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*sorted(payload()), "mentions", "attachments"]), JSON))
@settings(max_examples=150)
def test_no_message_breaks_the_decoder(changes: dict[str, Any]) -> None:
    """Whatever Discord sends is read, set aside or kept as poison."""
    item = to_inbound(payload("x") | changes, CHANNEL)
    assert item is None or isinstance(item, InboundMessage | Poison)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("What is\n a thread?", "What is a thread?"),
        ("> quoted\n\nwhy?", "why?"),
        ("<@42> hello", "hello"),
        ("", "Conversation"),
        ("\u200b \u2060", "Conversation"),
    ],
)
def test_a_thread_is_named_by_its_first_words(text: str, title: str) -> None:
    """Quotes, mentions and line breaks are no part of the name."""
    assert title_of(text) == title


@given(st.text())
def test_a_title_is_neither_empty_nor_long(text: str) -> None:
    """Discord takes 1 to 100 characters."""
    assert 1 <= len(title_of(text)) <= MAX_TITLE_CHARS + 1


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"type": 1}, DM),
        ({"type": 0, "guild_id": "9"}, ChannelKind(guild="9")),
        ({"type": 5}, ChannelKind()),
        ({"type": 2}, ChannelKind(opens_threads=False)),
        ({"type": 11, "parent_id": "4"}, ChannelKind(parent="4", opens_threads=False)),
    ],
)
def test_kinds_of_places(data: dict[str, Any], place: ChannelKind) -> None:
    """Direct chats, text channels, others, threads."""
    assert kind_of(data) == place


def interaction(kind: int, data: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "600",
        "application_id": "42",
        "type": kind,
        "token": "aW50.secret",
        "channel_id": "100",
        "channel": {"id": "100", "type": 0},
        "member": {"user": ANN, "nick": "Annie"},
        "data": data,
    } | fields


def taken(kind: int, data: dict[str, Any], **fields: Any) -> Interaction:
    read_ = to_interaction(interaction(kind, data, **fields), "main", fields.get("place"))
    assert isinstance(read_, Interaction)
    return read_


def test_a_slash_command() -> None:
    """It is the text "/name args"; its ref is what an answer needs."""
    option = {"name": "text", "type": 3, "value": "world peace"}
    message = taken(2, {"name": "goal", "type": 1, "options": [option]}).message
    assert (message.text, message.addressed) == ("/goal world peace", "direct")
    assert (message.sender, message.sender_name, message.dedupe_key) == ("7", "Annie", "600")
    assert message.address == Address("discord", "main", "100")
    assert Callback.parse(message.message_ref) == Callback("42", "aW50.secret", "600")


def test_a_command_in_a_thread() -> None:
    """The interaction tells which channel is above it."""
    thread = {"id": "300", "type": 11, "parent_id": "100"}
    fields = {"channel_id": "300", "channel": thread}
    message = taken(2, {"name": "new", "type": 1}, **fields).message
    assert (message.address.chat, message.address.thread) == ("100", "300")


def test_a_command_in_a_direct_chat() -> None:
    """There the person is no member."""
    direct = interaction(2, {"name": "new", "type": 1}, member=None, user=BEN)
    read_ = to_interaction(direct, "main", DM)
    assert isinstance(read_, Interaction)
    assert (read_.message.chat_kind, read_.message.sender_name) == ("dm", "ben")


def test_a_pressed_button() -> None:
    """It says what the button stands for, and what stands on it."""
    button = {"type": 2, "custom_id": "/pair approve AB", "label": "Approve"}
    shown = {"id": "5", "content": "Let Ben in?", "components": [{"components": [button]}]}
    pressed = taken(3, {"custom_id": "/pair approve AB"}, message=shown)
    assert pressed.message.text == "/pair approve AB"
    assert pressed.message.message_ref is None
    assert (pressed.pressed, pressed.label) == ("Let Ben in?", "Approve")
    assert pressed.message.pressed


def test_a_pressed_button_of_a_full_message() -> None:
    """Nothing of the message is cut for the note."""
    shown = {"id": "5", "content": "x" * 2000, "components": []}
    pressed = taken(3, {"custom_id": "y"}, message=shown).pressed
    assert pressed is not None
    assert pressed == "x" * 2000


@pytest.mark.parametrize(
    ("kind", "data"),
    [(1, {}), (4, {"name": "x"}), (2, {"name": "x", "type": 2}), (3, {"custom_id": ""})],
)
def test_interactions_that_say_nothing(kind: int, data: dict[str, Any]) -> None:
    """Pings, completions and menus of other kinds are left aside."""
    assert to_interaction(interaction(kind, data), "main", None) is None


@pytest.mark.parametrize("broken", [{"token": 5}, {"channel": {}}, {"id": "x"}])
def test_an_interaction_that_cannot_be_decoded(broken: dict[str, Any]) -> None:
    """It is poison; the reason holds nothing of it."""
    item = to_interaction(interaction(2, {"name": "x"}) | broken, "main", None)
    assert isinstance(item, Poison)
    assert "secret" not in item.reason


@pytest.mark.parametrize("ref", [None, "500"])
def test_a_message_is_no_callback(ref: str | None) -> None:
    """The ref of a message is its id."""
    assert Callback.parse(ref) is None


def test_a_callback_survives_its_ref() -> None:
    """It is stored as text and read again after a restart."""
    callback = Callback("42", "aW50.secret", "600")
    assert Callback.parse(callback.ref) == callback
    assert callback.age_s > ANSWERABLE_S


@given(st.integers(min_value=1_500_000_000, max_value=4_000_000_000))
def test_snowflakes_are_times(seconds: int) -> None:
    """The least id of a moment was made at that moment."""
    assert snowflake_s(str(snowflake_at(seconds))) == seconds
