"""What an update means: pure decoding, no server."""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from telegram.constants import MessageType

from adapters.messages import Address, InboundMessage, Move, Poison
from adapters.telegram.inbound import _SERVICE, BotIdentity, Reading
from adapters.telegram.receive import Albums, read_updates

BOT = BotIdentity(42, "parley_bot")
ANN = {"id": 7, "is_bot": False, "first_name": "Ann", "last_name": "Lee", "username": "ann"}
GROUP = {"id": -100, "type": "supergroup"}


def update(text: str | None = None, *, key: str = "message", **fields: Any) -> dict[str, Any]:
    chat = {"id": 7, "type": "private"}
    message = {"message_id": 5, "date": 1, "chat": chat, "from": ANN} | fields
    if text is not None:
        message["text"] = text
    return {"update_id": 900, key: message}


def reader_of(*allow_bots: str) -> Callable[[list[Any]], Any]:
    reading, albums = Reading("main", BOT, frozenset(allow_bots)), Albums(time.monotonic)
    return partial(read_updates, reading=reading, albums=albums)


def item_of(raw: Any) -> Any:
    return reader_of()([raw])[0][1]


def read(*args: Any, **fields: Any) -> InboundMessage:
    message = item_of(update(*args, **fields))
    assert isinstance(message, InboundMessage)
    return message


def mark(kind: str, text: str, marked: str, **fields: Any) -> dict[str, Any]:
    """Return an entity over the first occurrence of `marked`, counted in UTF-16 units."""
    before = text[: text.index(marked)]
    units = [len(part.encode("utf-16-le")) // 2 for part in (before, marked)]
    return {"type": kind, "offset": units[0], "length": units[1]} | fields


def in_group(text: str, *marks: dict[str, Any], **fields: Any) -> InboundMessage:
    return read(text, **{"chat": GROUP, "entities": list(marks)} | fields)


def test_a_private_text() -> None:
    """A private message carries sender, address, text and its own raw JSON."""
    message = read("hello", unknown_field=1)
    assert message.address == Address("telegram", "main", "7")
    assert (message.chat_kind, message.sender, message.sender_name) == ("dm", "7", "Ann Lee")
    assert (message.text, message.dedupe_key, message.message_ref) == ("hello", "7:5", "5")
    assert '"unknown_field":1' in message.raw
    assert message.unreadable is None
    assert message.kind == "message"
    assert not message.authenticated


def test_an_edit_is_a_version_of_its_own() -> None:
    """An edited message names the one it changes, and is keyed by its own update."""
    message = read("hello!", key="edited_message", edit_date=77)
    assert (message.kind, message.message_ref) == ("edit", "5")
    assert message.dedupe_key == "7:5:e900"


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ({"id": 7, "first_name": "Ann"}, "Ann"),
        ({"id": 7, "username": "ann"}, "ann"),
        ({"id": 7}, "7"),
    ],
)
def test_the_best_name_of_a_sender(user: dict[str, Any], name: str) -> None:
    """First and last name, else the user name, else the id."""
    assert read("x", **{"from": user}).sender_name == name


def test_a_group_message_that_is_not_for_the_bot() -> None:
    """Talk between people in a group is handed over as such; the intake decides."""
    assert in_group("hello all").addressed == "overheard"


def test_a_mention_in_a_group_is_cut_off() -> None:
    """A leading @bot addresses the bot and is not part of the text."""
    text = "@Parley_Bot, what time is it?"
    message = in_group(text, mark("mention", text, "@Parley_Bot"))
    assert (message.text, message.chat_kind) == ("what time is it?", "group")


def test_a_mention_after_emoji_is_found() -> None:
    """Entity offsets count UTF-16 units: an emoji in front counts two."""
    text = "🎉🎉 ask @parley_bot now"
    assert in_group(text, mark("mention", text, "@parley_bot")).addressed == "direct"
    wrong = {"type": "mention", "offset": 7, "length": 11}
    assert in_group(text, wrong).addressed == "overheard"


def test_a_mention_of_somebody_else() -> None:
    """A mention of another name is not for the bot."""
    text = "@parley_bot2 hi"
    assert in_group(text, mark("mention", text, "@parley_bot2")).addressed == "overheard"


def test_a_text_mention_of_the_bot() -> None:
    """A mention by name (without @) addresses the bot through the user's id."""
    text = "Parley hello"
    user = {"id": 42, "is_bot": True, "first_name": "Parley"}
    assert in_group(text, mark("text_mention", text, "Parley", user=user)).text == "hello"
    other = user | {"id": 43}
    named = mark("text_mention", text, "Parley", user=other)
    assert (in_group(text, named).text, in_group(text, named).addressed) == (text, "overheard")


def test_a_mention_without_more_stays() -> None:
    """A bare @bot is kept as the text, so that there is something to answer."""
    text = "@parley_bot"
    assert in_group(text, mark("mention", text, text)).text == text


def test_a_reply_to_the_bot_is_for_the_bot() -> None:
    """A reply to the bot's message needs no mention, and quotes it."""
    replied = {"message_id": 4, "from": {"id": 42, "is_bot": True}, "text": "Which one?"}
    message = in_group("the second", reply_to_message=replied)
    assert message.text == "> Which one?\n\nthe second"


def test_a_reply_to_a_person_is_not() -> None:
    """A reply to somebody else in a group is overheard."""
    replied = {"message_id": 4, "from": ANN, "text": "?"}
    assert in_group("yes", reply_to_message=replied).addressed == "overheard"


def test_a_message_in_a_topic_that_the_bot_created_is_no_reply() -> None:
    """Every message of a forum topic replies to its creation; that addresses nobody."""
    created = {"from": {"id": 42, "is_bot": True}, "forum_topic_created": {"name": "t"}}
    fields = {"message_thread_id": 3, "is_topic_message": True, "reply_to_message": created}
    assert in_group("hello all", **fields).addressed == "overheard"


@pytest.mark.parametrize(
    ("text", "command", "expected"),
    [
        ("/new", "/new", "/new"),
        ("/new@parley_bot", "/new@parley_bot", "/new"),
        ("/new@PARLEY_bot now", "/new@PARLEY_bot", "/new now"),
    ],
)
def test_a_command_to_the_bot(text: str, command: str, expected: str) -> None:
    """A command without a name or with the bot's own is for the bot, its name cut off."""
    assert in_group(text, mark("bot_command", text, command)).text == expected


def test_a_command_to_another_bot() -> None:
    """A command with another bot's name is overheard whole, in a reply to the bot too."""
    text = "/new@other_bot"
    replied = {"from": {"id": 42, "is_bot": True}, "text": "hi"}
    message = in_group(text, mark("bot_command", text, text), reply_to_message=replied)
    assert (message.text, message.addressed) == (text, "overheard")


def test_a_command_within_a_text_addresses_nobody() -> None:
    """Only a leading command counts in a group."""
    text = "try /new please"
    assert in_group(text, mark("bot_command", text, "/new")).addressed == "overheard"


BOB: dict[str, Any] = {"id": 8, "is_bot": False, "first_name": "Bob"}
SAID: dict[str, Any] = {"from": BOB, "text": "said before"}
NEWS: dict[str, Any] = {"id": -7, "type": "channel", "title": "News"}


@pytest.mark.parametrize(
    ("fields", "authors"),
    [
        ({}, ()),
        ({"reply_to_message": SAID}, ("8",)),
        ({"reply_to_message": SAID | {"from": ANN}}, ()),
        ({"reply_to_message": SAID | {"from": {"id": 42, "is_bot": True}}}, ()),
        ({"reply_to_message": SAID | {"text": ""}}, ()),
        ({"reply_to_message": {"text": "by nobody"}}, ("?",)),
        ({"reply_to_message": SAID | {"sender_chat": NEWS}}, ("-7",)),
        ({"reply_to_message": SAID | {"forward_origin": {"type": "hidden_user"}}}, ("8", "?")),
        ({"reply_to_message": SAID | {"text": ""}, "quote": {"text": "a part"}}, ("8",)),
        ({"external_reply": {"origin": {"sender_user": BOB}}, "quote": {"text": "x"}}, ("8",)),
        ({"external_reply": {"origin": {"sender_user": BOB}}}, ()),
        ({"external_reply": {}, "quote": {"text": "x"}}, ("?",)),
        ({"forward_origin": {"type": "user", "sender_user": BOB}}, ("8",)),
        ({"forward_origin": {"type": "user", "sender_user": ANN}}, ()),
        ({"forward_origin": {"type": "hidden_user", "sender_user_name": "Ann Lee"}}, ("?",)),
        ({"forward_origin": {"type": "channel", "chat": NEWS}}, ("-7",)),
        ({"forward_origin": {"type": "chat", "sender_chat": GROUP}}, ("-100",)),
        ({"forward_origin": {"type": "new kind"}}, ("?",)),
        ({"via_bot": {"id": 99, "is_bot": True}}, ("99",)),
    ],
)
def test_whose_words_a_message_holds(fields: dict[str, Any], authors: tuple[str, ...]) -> None:
    """Whoever is quoted or forwarded; neither the sender nor the bot, whose words are nobody's."""
    assert read("so?", **fields).authors == authors


def test_the_file_of_another_names_its_author() -> None:
    """Of a forwarded message, or of one that is replied to; a file of one's own names nobody."""
    file = {"document": {"file_id": "f"}}
    forwarded = read(None, **file, forward_origin={"sender_user": BOB})
    replied = read("what is it?", reply_to_message=file | {"from": BOB})
    own = read(None, caption="mine", **file, reply_to_message=SAID)
    for message in (forwarded, replied):
        assert (message.authors, message.attachments[0].authors) == (("8",), ("8",))
    assert (own.authors, own.attachments[0].authors) == (("8",), ())


def test_a_command_gets_no_quote_in_front() -> None:
    """A command sent as a reply still begins with its slash."""
    fields = {"entities": [mark("bot_command", "/stop", "/stop")]}
    message = read("/stop", reply_to_message={"text": "long story"}, **fields)
    assert (message.text, message.authors) == ("/stop", ())


def test_a_topic_is_a_thread() -> None:
    """A topic message names its thread; a plain reply chain does not make one."""
    text = "@parley_bot hi"
    named = mark("mention", text, "@parley_bot")
    topic = in_group(text, named, message_thread_id=3, is_topic_message=True)
    assert (topic.chat_kind, topic.address.thread) == ("thread", "3")
    chain = in_group(text, named, message_thread_id=3)
    assert (chain.chat_kind, chain.address.thread) == ("group", None)


def test_quotes_are_limited_and_prefixed_line_by_line() -> None:
    """At most 500 characters are quoted, each line with its mark."""
    message = read("so?", reply_to_message={"text": "a\n" + "b" * 600})
    quote, _, text = message.text.partition("\n\n")
    assert quote.startswith("> a\n> bbb")
    assert quote.endswith("b…")
    assert len(quote) == 500 + 4
    assert text == "so?"


def test_the_quoted_part_is_preferred() -> None:
    """Where a person picked a part of the message, only that part is quoted."""
    message = read("this?", reply_to_message={"text": "a b c"}, quote={"text": "b"})
    assert message.text == "> b\n\nthis?"


def link(text: str, words: str, url: str = "https://e.org/7") -> list[dict[str, Any]]:
    """Return the entities of a text in which these words are a link."""
    return [mark("text_link", text, words, url=url)]


READ = "please read this 😀 report"
SHOWN = "please read this 😀 report (https://e.org/7)"
WITH_LINK = {"text": READ, "entities": link(READ, "report")}
CAPTION = {"caption": READ, "caption_entities": link(READ, "report")}
COMMAND = mark("bot_command", "/ask", "/ask")
POST = {"type": "channel", "chat": {"id": -7, "type": "channel", "title": "News"}}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (WITH_LINK, SHOWN),
        (CAPTION, SHOWN),
        (
            {"text": READ, "entities": [*link(READ, "report"), *link(READ, "read", "tg://u")]},
            SHOWN.replace("read", "read (tg://u)"),
        ),
        ({"text": "😀 a", "entities": link("😀 a", "a", "http://a")}, "😀 a (http://a)"),
        ({"text": "a b", "entities": link("a b", "a", "http://a")}, "a (http://a) b"),
        (WITH_LINK | {"entities": [mark("bold", READ, "report"), *link(READ, "report")]}, SHOWN),
        ({"text": "http://a", "entities": link("http://a", "http://a", "http://a")}, "http://a"),
        (
            {"text": "/ask this", "entities": [COMMAND, *link("/ask this", "this")]},
            "/ask this (https://e.org/7)",
        ),
        ({"text": "so?", "reply_to_message": WITH_LINK}, f"> {SHOWN}\n\nso?"),
        ({"text": "so?", "reply_to_message": CAPTION}, f"> {SHOWN}\n\nso?"),
        (
            {"text": "so?", "quote": {"text": "a report", "entities": link("a report", "report")}},
            "> a report (https://e.org/7)\n\nso?",
        ),
        (
            WITH_LINK | {"forward_origin": {"sender_user_name": "Bob"}},
            f"> Bob:\n> {SHOWN}",
        ),
    ],
)
def test_the_address_of_a_link_stands_behind_its_words(fields: dict[str, Any], text: str) -> None:
    """In a text, a caption, a quote and a forward; offsets count UTF-16 units."""
    assert read(**fields).text == text


def test_the_address_of_a_link_behind_the_bots_name() -> None:
    """Its offset counts from the name on, which is left out."""
    text = "@parley_bot read this"
    named = mark("mention", text, "@parley_bot")
    assert in_group(text, named, *link(text, "this")).text == "read this (https://e.org/7)"


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ({"type": "user", "sender_user": {"id": 99, "first_name": "Zoe"}}, "Zoe"),
        ({"type": "user", "sender_user": {"id": 9, "first_name": "Z", "last_name": "P"}}, "Z P"),
        ({"type": "user", "sender_user": {"id": 9, "username": "zoe"}}, "zoe"),
        ({"type": "user", "sender_user": {"id": 9, "is_bot": True, "first_name": "CI"}}, "CI"),
        ({"type": "hidden_user", "sender_user_name": "Someone"}, "Someone"),
        ({"type": "hidden_user", "sender_user_name": "a\nb"}, "a b"),
        (POST, "News"),
        (POST | {"author_signature": "Al"}, "News, Al"),
        ({"type": "chat", "sender_chat": {"id": -8, "type": "supergroup", "title": "G"}}, "G"),
        ({"type": "chat", "sender_chat": {"id": -8, "type": "supergroup"}}, "-8"),
        ({"type": "new kind"}, "unknown"),
    ],
)
def test_a_forward_is_a_quote_with_the_name_of_its_author(
    origin: dict[str, Any], name: str
) -> None:
    """All of it, each line; a file without words has the name alone."""
    message = read("/stop\n" + "b" * 600, forward_origin=origin)
    assert message.text == f"> {name}:\n> /stop\n> {'b' * 600}"
    assert read(None, document={"file_id": "f"}, forward_origin=origin).text == f"> {name}:"
    replied = read("so?", reply_to_message={"text": "a", "forward_origin": origin})
    assert replied.text == f"> {name}:\n> a\n\nso?"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"sticker": {"file_id": "f", "is_video": True}}, "an animated sticker"),
        ({"venue": {}, "location": {}}, "a place"),
        ({"contact": {}}, "a contact"),
        ({"dice": {"emoji": "x", "value": 3}}, "a dice"),
        ({"hologram": {}}, "a message of an unknown kind"),
        ({"text": "  "}, "an empty message"),
    ],
)
def test_what_cannot_be_read_is_named(fields: dict[str, Any], name: str) -> None:
    """Content that is neither text nor a file is named, so that the sender can be told."""
    message = read(**fields)
    assert (message.unreadable, message.attachments) == (name, ())


FILE = {"file_id": "id", "file_unique_id": "u", "file_size": 9}
NAMED = FILE | {"file_name": "a.pdf", "mime_type": "application/pdf"}


@pytest.mark.parametrize(
    ("fields", "kind", "name", "mime"),
    [
        ({"document": NAMED}, "file", "a.pdf", "application/pdf"),
        ({"document": NAMED | {"mime_type": "image/png"}}, "image", "a.pdf", "image/png"),
        ({"document": NAMED | {"mime_type": "audio/flac"}}, "audio", "a.pdf", "audio/flac"),
        ({"document": FILE}, "file", "file_5", ""),
        ({"voice": FILE}, "voice", "voice_5.ogg", "audio/ogg"),
        ({"audio": FILE | {"title": "Song"}}, "audio", "Song.mp3", "audio/mpeg"),
        ({"audio": FILE}, "audio", "audio_5.mp3", "audio/mpeg"),
        ({"video": FILE}, "video", "video_5.mp4", "video/mp4"),
        ({"video_note": FILE}, "video", "video_5.mp4", "video/mp4"),
        ({"animation": FILE, "document": FILE}, "video", "video_5.mp4", "video/mp4"),
        ({"sticker": FILE}, "image", "sticker_5.webp", "image/webp"),
    ],
)
def test_files_become_attachments(fields: dict[str, Any], kind: str, name: str, mime: str) -> None:
    """One attachment for each file, with what is needed to fetch it later."""
    message = read(**fields)
    (file,) = message.attachments
    assert (file.kind, file.name, file.mime, file.size_bytes) == (kind, name, mime, 9)
    assert json.loads(file.ref) == {"file_id": "id", "file_unique_id": "u"}
    assert (message.text, message.unreadable) == ("", None)


def test_the_largest_size_of_a_photo_counts() -> None:
    """A photo comes in several sizes; the one with most pixels is taken."""
    sizes = [
        {"file_id": name, "width": side, "height": side}
        for name, side in zip("sbm", (9, 99, 50), strict=True)
    ]
    (file,) = read(photo=sizes).attachments
    assert (file.kind, file.name, json.loads(file.ref)["file_id"]) == ("image", "photo_5.jpg", "b")


def test_a_caption_is_the_text() -> None:
    """A captioned photo gives both its text and its file."""
    message = read(photo=[FILE], caption="what is this?")
    assert (message.text, len(message.attachments)) == ("what is this?", 1)


def test_an_album_is_for_the_bot_as_a_whole() -> None:
    """Its caption names the bot; the pictures behind it come without one, other albums do too."""
    reader = reader_of()
    text = "@parley_bot compare"
    named = {"caption": text, "caption_entities": [mark("mention", text, "@parley_bot")]}

    def said(album: str, **fields: Any) -> Any:
        photo = {"photo": [FILE], "media_group_id": album, "chat": GROUP}
        item: Any = reader([update(**photo | fields)])[0][1]
        return item.addressed

    assert [said("a", **named), said("a"), said("b")] == ["direct", "direct", "overheard"]
    assert said("a", chat={"id": -200, "type": "group"}) == "overheard"


def test_an_album_is_for_the_bot_whichever_picture_says_so() -> None:
    """Pictures in front of the one with the caption belong to the question too."""
    text = "@parley_bot compare"
    album: dict[str, Any] = {"photo": [FILE], "media_group_id": "a", "chat": GROUP}
    named = {"caption": text, "caption_entities": [mark("mention", text, "@parley_bot")]}
    items: Any = reader_of()([update(**album), update(**album | named)])
    assert [item.addressed for _, item in items] == ["direct", "direct"]


def test_a_caption_can_address_the_bot() -> None:
    """Mentions in captions count in groups."""
    text = "@parley_bot look"
    fields: dict[str, Any] = {
        "photo": [{"file_id": "f"}],
        "caption": text,
        "caption_entities": [mark("mention", text, text[:11])],
    }
    message = read(chat=GROUP, **fields)
    assert (message.text, message.addressed) == ("look", "direct")


CHANNEL = {"id": -5, "type": "channel", "title": "News"}


@pytest.mark.parametrize(
    "fields",
    [
        {"new_chat_members": [ANN]},
        {"pinned_message": {"message_id": 3}},
        {"from": {"id": 8, "is_bot": True}, "text": "beep"},
        {"from": {"id": 42, "is_bot": True}, "text": "what I said myself"},
        {"chat": CHANNEL, "text": "news"},
        {"chat": GROUP, "sender_chat": CHANNEL, "is_automatic_forward": True, "text": "news"},
        {"key": "edited_message", "location": {}, "edit_date": 5},
    ],
)
def test_what_nobody_said_to_the_bot(fields: dict[str, Any]) -> None:
    """Service messages, other bots, channels and points that move on a map are ignored."""
    assert item_of(update(**fields)) is None


def test_a_notice_is_told_from_what_people_say() -> None:
    """A kind that a new version of the SDK brings is looked at: it must not be passed over."""
    assert (len(MessageType), len(_SERVICE)) == (79, 52)
    for kind in ("photo", "sticker", "live_photo", "paid_media", "effect_id", "giveaway"):
        assert kind not in _SERVICE
    assert {"pinned_message", "giveaway_winners", "forum_topic_closed"} < _SERVICE


def test_other_bots_may_be_listened_to() -> None:
    """One that is named in `allow_bots` counts like a person; the bot itself never does."""
    reader = reader_of("8", "42")
    other: Any = {"from": {"id": 8, "is_bot": True}}
    myself: Any = {"from": {"id": 42, "is_bot": True}}
    (_, heard), (_, own) = reader([update("beep", **other), update("me", **myself)])
    assert isinstance(heard, InboundMessage)
    assert own is None


@pytest.mark.parametrize(
    ("fields", "sender", "name"),
    [
        ({"sender_chat": GROUP | {"title": "Club"}}, "-100", "Club"),
        ({"sender_chat": GROUP, "author_signature": "Ann"}, "-100", "Ann"),
        ({"sender_chat": CHANNEL}, "-5", "News"),
        ({"sender_chat": {"id": -6, "type": "channel"}}, "-6", "-6"),
    ],
)
def test_who_speaks_in_the_name_of_a_chat(fields: dict[str, Any], sender: str, name: str) -> None:
    """An anonymous administrator, or a person as a channel, is known by the chat's id."""
    stand_in = {"id": 1087968824, "is_bot": True, "first_name": "Group"}
    message = read("hello", chat=GROUP, **{"from": stand_in} | fields)
    assert (message.sender, message.sender_name) == (sender, name)


PRESSED = {
    "id": "91",
    "from": ANN,
    "data": "/pair approve ABCD2345",
    "message": {
        "message_id": 4,
        "date": 1,
        "chat": GROUP,
        "message_thread_id": 3,
        "is_topic_message": True,
    },
}


def test_a_pressed_button_is_a_message() -> None:
    """It says what the button stands for, in the chat and topic of the button."""
    message = item_of({"update_id": 1, "callback_query": PRESSED})
    assert message.address == Address("telegram", "main", "-100", "3")
    assert (message.text, message.sender, message.addressed) == (PRESSED["data"], "7", "direct")
    assert (message.dedupe_key, message.message_ref, message.chat_kind) == ("cb:91", None, "thread")


@pytest.mark.parametrize("missing", ["message", "data"])
def test_a_press_that_says_nothing(missing: str) -> None:
    """A button of an inline message or of a game is none of ours."""
    query = {name: value for name, value in PRESSED.items() if name != missing}
    assert item_of({"update_id": 1, "callback_query": query}) is None


def test_an_update_of_another_kind_is_ignored() -> None:
    """What was not asked for is no poison."""
    assert item_of({"update_id": 1, "poll_answer": {}}) is None


def test_being_thrown_out_is_logged() -> None:
    """Who blocks the bot, or removes it from a group, leaves a line."""
    change = {"chat": GROUP, "new_chat_member": {"status": "kicked"}}
    with structlog.testing.capture_logs() as logs:
        assert item_of({"update_id": 1, "my_chat_member": change}) is None
    assert logs == [
        {
            "event": "telegram_membership_changed",
            "log_level": "info",
            "chat": "-100",
            "status": "kicked",
        }
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"chat": {"id": -5, "type": "group"}, "migrate_to_chat_id": -1005},
        {"chat": {"id": -1005, "type": "supergroup"}, "migrate_from_chat_id": -5},
    ],
)
def test_a_migration_is_a_move(fields: dict[str, Any]) -> None:
    """A group that became a supergroup goes on there, whichever of the two tells."""
    assert item_of(update(**fields)) == Move("telegram", "main", "-5", "-1005")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (update("x", chat={"id": 1, "type": "hyperspace"}), "hyperspace"),
        (update("x", message_id="5"), "message.message_id"),
        (update(text=None) | {"message": "no object"}, "message"),
        (update("x", entities=[{"type": "bold", "offset": -1, "length": 3}]), "offset"),
    ],
)
def test_an_undecodable_update_is_poison(broken: Any, reason: str) -> None:
    """What cannot be decoded is kept whole, under the update's number."""
    item = item_of(broken)
    assert isinstance(item, Poison)
    assert (item.source, item.dedupe_key) == ("telegram:main", "u900")
    assert reason in item.reason
    item.raw.encode()


def test_what_cannot_be_stored_is_replaced() -> None:
    """Lone surrogates and NULs become U+FFFD, and entity offsets still hold."""
    text = "a\x00\ud83d /new@parley_bot"
    marks = [{"type": "mention", "offset": 4, "length": 4}]
    message = read(text, entities=marks)
    assert message.text == "a\ufffd\ufffd /new@parley_bot"
    message.raw.encode()


@pytest.mark.parametrize("broken", [7, None, [], "text", {}, {"update_id": True}])
def test_poison_without_a_number_is_named_by_its_content(broken: Any) -> None:
    """Different nameless updates stay apart; the same one is recognised."""
    item = item_of(broken)
    assert isinstance(item, Poison)
    assert item.dedupe_key.startswith("x")
    assert item == item_of(broken)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
FIELDS = st.dictionaries(
    st.sampled_from([
        "text",
        "chat",
        "from",
        "entities",
        "reply_to_message",
        "message_id",
        "quote",
    ]),
    JSON,
)


@given(FIELDS)
def test_no_update_raises(fields: dict[str, Any]) -> None:
    """Whatever the JSON, decoding ends in one of its three outcomes."""
    item = item_of({**update("hello"), "message": update("x")["message"] | fields})
    assert item is None or isinstance(item, InboundMessage | Move | Poison)


def test_null_is_as_good_as_absent() -> None:
    """Some servers write optional fields out; nothing is poison, and nothing an event, for that."""
    chat = {"id": -100, "type": "supergroup", "title": None}
    absent = dict.fromkeys(["entities", "caption", "photo", "reply_to_message", "poll", "quote"])
    message = read("hi", chat=chat, new_chat_members=None, edit_date=None, **absent)
    assert (message.text, message.unreadable, message.attachments) == ("hi", None, ())


ASKED_ABOUT = {"message_id": 4, "chat": GROUP, "photo": [{"file_id": "seen"}], "caption": "sea"}


@pytest.mark.parametrize(
    ("text", "fields", "names"),
    [
        ("@parley_bot what is this?", {}, ["photo_4.jpg"]),
        ("nice one", {}, []),
        ("/new", {}, []),
        (None, {"caption": "/a@parley_bot", "document": {"file_id": "own"}}, ["file_5"]),
    ],
)
def test_a_question_about_a_file(
    text: str | None, fields: dict[str, Any], names: list[str]
) -> None:
    """A reply to the bot brings along what it is about, unless it has a file of its own."""
    kinds = {"/new": "bot_command", "@parley_bot": "mention"}
    marks = [mark(kind, text, name) for name, kind in kinds.items() if text and name in text]
    message = read(text, chat=GROUP, entities=marks, reply_to_message=ASKED_ABOUT, **fields)
    assert [file.name for file in message.attachments] == names


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\tmp\\a b.txt\n", "a b.txt"),
        (".profile", ".profile"),
        ("a/..", "file_5"),
        ("a/", "file_5"),
    ],
)
def test_the_name_of_a_file_is_no_path(given: str, name: str) -> None:
    """Only its last part is taken."""
    (file,) = read(document={"file_id": "f", "file_name": given}).attachments
    assert file.name == name
    (song,) = read(audio={"file_id": "f", "title": given}).attachments
    assert "/" not in song.name
