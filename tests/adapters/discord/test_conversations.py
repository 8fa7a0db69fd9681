"""What comes in: direct chats, mentions and their threads, forum posts, replies, edits, files."""

import pytest

from adapters.discord.adapter import DiscordAdapter
from adapters.errors import FetchDelayed, FetchRejected, SendRejected
from adapters.messages import Address
from tests.adapters.discord.conftest import MakeAdapter, asked, row, running, where
from tests.support.discord.faults import NO_PERMISSION, UNAVAILABLE, Fault
from tests.support.discord.server import DiscordServer
from tests.support.recording_intake import RecordingIntake


async def test_a_direct_message(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """A direct chat is its own conversation, and needs no mention."""
    async with running(adapter, server):
        written = server.write(server.direct(), "hello 😀 **you**")
        await intake.has(1)
    (message,) = intake.messages
    assert message.address == Address("discord", "default", server.direct().ref)
    assert (message.chat_kind, message.addressed) == ("dm", "direct")
    assert (message.sender, message.sender_name) == (server.ann.ref, "Ann")
    assert (message.text, message.message_ref) == ("hello 😀 **you**", written.ref)
    assert written.ref in message.raw


async def test_a_mention_opens_one_thread_and_goes_on_there(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """The thread has the message's id; its starter echo and a second mention open nothing."""
    async with running(adapter, server):
        written = server.write(server.general, "how tall is K2?", mention=True)
        await server.wait_for(lambda: written.thread)
        thread = server.thread_of(written)
        server.write(thread, "and K3?")
        server.write(thread, "and K4?", mention=True)
        await intake.has(3)
    assert intake.texts == ["how tall is K2?", "and K3?", "and K4?"]
    assert {message.address for message in intake.messages} == {where(thread)}
    assert intake.messages[0].chat_kind == "thread"
    assert server.general.texts == [f"<@{server.bot.id}> how tall is K2?"]
    assert len(server.made("thread")) == 1


async def test_an_answer_opens_the_thread_where_that_failed(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """The thread is opened after the commit; if that fails, the answer opens it."""
    server.fail("thread", UNAVAILABLE, UNAVAILABLE, UNAVAILABLE)
    async with running(adapter, server):
        written = server.write(server.general, "hello", mention=True)
        await intake.has(1)
        await server.wait_for(lambda: server.made("thread"))
        server._faults["thread"].clear()
        address = intake.messages[0].address
        await adapter.send(row(adapter, "hi", address, reply_to=written.ref))
    assert server.thread_of(written).texts == ["hi"]
    assert len(server.general.texts) == 1


async def test_a_thread_that_somebody_opened_first(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """One that has been opened already is as good as a thread of its own."""
    async with running(adapter, server):
        server.gateway.holding = []
        written = server.write(server.general, "hello", mention=True)
        server.open_thread(written)
        server.gateway.release()
        await intake.has(1)
        address = intake.messages[0].address
        await adapter.send(row(adapter, "hi", address, reply_to=written.ref))
    assert server.thread_of(written).texts == ["hi"]
    assert intake.texts == ["hello"]


async def test_an_answer_never_lands_in_the_parent(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Where the thread of a conversation may not be opened the answer is buried with the reason."""
    async with running(adapter, server):
        server.general.forbidden.add("threads")
        written = server.write(server.general, "hello", mention=True)
        await intake.has(1)
        address = intake.messages[0].address
        with pytest.raises(SendRejected, match="permission"):
            await adapter.send(row(adapter, "hi", address, reply_to=written.ref))
    assert len(server.general.texts) == 1
    assert written.thread is None


async def test_where_the_bot_may_open_no_threads(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """A mention is answered in the channel, since there can never be a thread for it."""
    server.general.forbidden.add("threads")
    async with running(adapter, server):
        written = server.write(server.general, "hello", mention=True)
        await intake.has(1)
        address = intake.messages[0].address
        await adapter.send(row(adapter, "hi", address, reply_to=written.ref))
    assert server.general.texts[1:] == ["hi"]
    assert (address, server.made("thread")) == (where(server.general), [])


async def test_a_title_that_discord_refuses(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Words that AutoMod blocks are no reason to leave the question without its thread."""
    server.fail("thread", Fault("error", 400, 200_001, "Title was blocked"))
    async with running(adapter, server):
        written = server.write(server.general, "bad words", mention=True)
        await server.wait_for(lambda: written.thread)
    assert server.thread_of(written).name == "Conversation"


async def test_without_threads_it_answers_in_the_channel(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """`threads: false` keeps the conversation in the channel."""
    adapter = make(threads=False)
    async with running(adapter, server):
        written = server.write(server.general, "hello", mention=True)
        await intake.has(1)
        (message,) = intake.messages
        await adapter.send(row(adapter, "hi", message.address, reply_to=written.ref))
    assert message.address == where(server.general)
    assert message.chat_kind == "group"
    assert server.general.texts[1:] == ["hi"]
    assert server.general.messages[-1].reply_to is written


async def test_a_mention_inside_somebodys_thread(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """In a thread of others only a mention is for the bot; after it, everything is."""
    thread = server.open_loose_thread(server.general, "plans")
    async with running(adapter, server):
        server.write(thread, "between us")
        await intake.has_ignored(1)
        server.write(thread, "what do you think?", mention=True)
        await intake.has(1)
        server.write(thread, "well?")
        await intake.has(2)
    assert intake.texts == ["what do you think?", "well?"]
    assert {message.address for message in intake.messages} == {where(thread)}
    assert server.made("thread") == []


async def test_a_forum_post(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """A post that mentions the bot is a conversation; its id is that of its first message."""
    forum = server.add_channel("help", forum=True)
    async with running(adapter, server):
        post = server.post(forum, "No sound", "It is silent.", mention=True)
        await intake.has(1)
        server.write(post.channel, "Still silent.")
        await intake.has(2)
        await adapter.send(row(adapter, "Louder.", intake.messages[0].address, reply_to=post.ref))
    assert intake.messages[0].address == Address("discord", "default", forum.ref, post.ref)
    assert intake.texts[0].endswith("It is silent.")
    assert intake.messages[1].address == intake.messages[0].address
    assert post.channel.texts[-1] == "Louder."
    assert server.made("thread") == []


async def test_a_thread_opened_before_the_bot_came(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Threads of before are known by GUILD_CREATE, archived ones when they are written in."""
    live = server.open_loose_thread(server.general, "live")
    sleeping = server.open_loose_thread(server.general, "sleeping")
    server.archive(sleeping)
    async with running(adapter, server):
        server.write(live, "one", mention=True)
        server.write(sleeping, "two", mention=True)
        await intake.has(2)
    assert {m.address for m in intake.messages} == {where(live), where(sleeping)}


async def test_unaddressed_messages_are_handed_over_as_overheard(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """What is said in a channel but not to the bot is for the gateway to judge."""
    async with running(adapter, server):
        server.write(server.general, "hello all")
        await intake.has_ignored(1)
    (message,) = intake.ignored
    assert (message.addressed, message.chat_kind) == ("overheard", "group")
    assert message.address.chat == server.general.ref
    assert server.made("thread") == []


async def test_a_mention_of_somebody_else_or_of_everybody_is_none(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Only the bot's own name addresses it."""
    bea = server.add_person("Bea")
    async with running(adapter, server):
        server.write(server.general, f"<@{bea.id}> hello")
        server.write(server.general, "@everyone hello")
        await intake.has_ignored(2)
    assert {message.addressed for message in intake.ignored} == {"overheard"}
    assert "Bea" in intake.ignored[0].text


async def test_a_reply_to_the_bot_is_for_it_and_quotes(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """A reply to the bot's message addresses it, and what is answered comes along."""
    adapter = make(threads=False)
    async with running(adapter, server):
        await adapter.send(row(adapter, "K2 is 8611 m.", where(server.general)))
        answer = server.general.messages[-1]
        server.write(server.general, "In feet?", reply_to=answer)
        await intake.has(1)
    (message,) = intake.messages
    assert message.addressed == "direct"
    assert "K2 is 8611 m." in message.text
    assert message.text.endswith("In feet?")


async def test_a_reply_to_somebody_else_quotes_in_a_direct_chat(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """The quoted text of an own message comes along."""
    async with running(adapter, server):
        first = server.write(server.direct(), "Mont Blanc")
        server.write(server.direct(), "this one", reply_to=first, ping=False)
        await intake.has(2)
    assert "Mont Blanc" in intake.texts[1]


async def test_a_reply_to_a_deleted_message(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Without the message there is nothing to quote, and the reply comes in."""
    async with running(adapter, server):
        first = server.write(server.direct(), "Mont Blanc")
        await intake.has(1)
        server.delete(first)
        server.write(server.direct(), "this one", reply_to=first)
        await intake.has(2)
    assert intake.texts[1].endswith("this one")


async def test_an_edit_is_a_new_version(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """An edit names the message that it changes; a link preview is no edit, but part of one."""
    async with running(adapter, server):
        written = server.write(server.direct(), "https://example.org helo")
        await intake.has(1)
        server.unfurl(written)
        server.edit(written, "https://example.org hello")
        await intake.has(2)
        server.unfurl(written)
        server.write(server.direct(), "next")
        await intake.has(3)
    assert [(m.kind, m.text) for m in intake.messages] == [
        ("message", "https://example.org helo"),
        ("edit", "https://example.org hello\n\n> Example"),
        ("message", "next"),
    ]
    assert intake.messages[1].message_ref == written.ref
    assert intake.messages[0].dedupe_key != intake.messages[1].dedupe_key


async def test_two_edits_are_two_versions(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """The second edit is no duplicate of the first."""
    async with running(adapter, server):
        written = server.write(server.direct(), "a")
        for text in ("b", "c"):
            written.edited_at = None
            server.edit(written, text)
        await intake.has(3)
    assert intake.texts == ["a", "b", "c"]


async def test_an_edit_of_a_mention_stays_in_its_thread(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """The new version of the message that opened a thread belongs to the thread's conversation."""
    async with running(adapter, server):
        written = server.write(server.general, "helo", mention=True)
        await server.wait_for(lambda: written.thread)
        server.edit(written, f"<@{server.bot.id}> hello")
        await intake.has(2)
    assert intake.messages[1].kind == "edit"
    assert intake.messages[1].address == intake.messages[0].address
    assert len(server.made("thread")) == 1


async def test_bots_and_webhooks_are_not_listened_to(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Own messages, other bots and webhooks are dropped, also where they mention the bot."""
    robot = server.add_person("Robot", bot=True)
    async with running(adapter, server):
        server.write(server.general, "hello", author=robot, mention=True)
        server.write(server.general, "hello", author=server.bot, mention=True)
        server.write(server.general, "hook", mention=True, webhook_id="99")
        server.write(server.direct(), "person")
        await intake.has(1)
    assert intake.texts == ["person"]
    assert intake.ignored == []
    assert server.made("thread") == []


async def test_an_allowed_bot_is_listened_to(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """`allow_bots` names the ids of bots that are like people."""
    robot = server.add_person("Robot", bot=True)
    adapter = make(allow_bots=(robot.ref,))
    async with running(adapter, server):
        server.write(server.general, "hello", author=robot, mention=True)
        await intake.has(1)
    assert intake.messages[0].sender == robot.ref


async def test_service_messages_are_nothing(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Joins, pins and notes about new threads are not messages of people."""
    async with running(adapter, server):
        server.join(server.general)
        server.open_loose_thread(server.general, "topic")
        server.write(server.direct(), "person")
        await intake.has(1)
    assert (intake.texts, intake.ignored) == (["person"], [])


async def test_what_cannot_be_read_is_named(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """A sticker or a poll comes in as what it is."""
    sticker = [{"id": "5", "name": "Wave", "format_type": 1}]
    async with running(adapter, server):
        server.write(server.direct(), "", sticker_items=sticker)
        await intake.has(1)
    assert intake.messages[0].unreadable


async def test_without_the_intent_mentions_and_direct_chats_still_work(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """The rest comes without content and is for nobody."""
    server.bot.privileged = False
    adapter = make(message_content=False)
    async with running(adapter, server):
        server.write(server.general, "unread")
        server.write(server.general, "mentioned", mention=True)
        server.write(server.direct(), "direct")
        await intake.has(2)
    assert sorted(intake.texts) == ["direct", "mentioned"]


async def test_attachments_are_described(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Images, voice messages and files keep their names, kinds and sizes; text is not needed."""
    files = (("a.png", "image/png", b"png!"), ("b.pdf", "application/pdf", b"%PDF"))
    async with running(adapter, server):
        server.write(server.direct(), "", files=files)
        voice = (("voice-message.ogg", "audio/ogg", b"Ogg"),)
        server.write(server.direct(), "", files=voice, voice=True)
        await intake.has(2)
    first, second = (message.attachments for message in intake.messages)
    assert [(a.name, a.kind, a.mime, a.size_bytes) for a in first] == [
        ("a.png", "image", "image/png", 4),
        ("b.pdf", "file", "application/pdf", 4),
    ]
    assert [a.kind for a in second] == ["voice"]


async def test_an_attachment_is_fetched_after_its_link_expired(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """A dead link is asked for anew, also by another process; the token stays with the API."""
    async with running(make(), server):
        server.write(server.direct(), "see", files=(("a.png", "image/png", b"png!"),))
        await intake.has(1)
    (message,) = intake.messages
    (attachment,) = message.attachments
    later = make()
    assert await later.fetch(message.address, attachment, 100) == b"png!"
    server.expire_links()
    assert await later.fetch(message.address, attachment, 100) == b"png!"


async def test_an_attachment_in_a_thread_is_fetched(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """The starter message is in the parent channel, the next one in the thread: both are found."""
    files = (("a.txt", "text/plain; charset=utf-8", b"text"),)
    adapter = make()
    async with running(adapter, server):
        written = server.write(server.general, "see", mention=True, files=files)
        await server.wait_for(lambda: written.thread)
        server.write(server.thread_of(written), "and", files=files)
        await intake.has(2)
        server.expire_links()
        for message in intake.messages:
            assert await adapter.fetch(message.address, message.attachments[0], 100) == b"text"


async def test_attachments_that_cannot_be_had(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """Too large and deleted are final, trouble of the server is not."""
    async with running(adapter, server):
        written = server.write(server.direct(), "see", files=(("a", "", b"12345"),))
        await intake.has(1)
    (message,) = intake.messages
    (attachment,) = message.attachments
    with pytest.raises(FetchRejected):
        await adapter.fetch(message.address, attachment, 4)
    server.fail("cdn", UNAVAILABLE)
    with pytest.raises(FetchDelayed):
        await adapter.fetch(message.address, attachment, 100)
    server.delete(written)
    server.expire_links()
    with pytest.raises(FetchRejected):
        await adapter.fetch(message.address, attachment, 100)


async def test_reactions_follow_a_message(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """👀 when it was received, ✅ or ⚠️ in its place at the end."""
    async with running(adapter, server):
        written = server.write(server.direct(), "hello")
        await intake.has(1)
        await adapter.acknowledge(asked(written), "received")
        assert written.emojis == ["👀"]
        await adapter.acknowledge(asked(written), "answered")
        assert written.emojis == ["✅"]


async def test_a_reaction_to_the_message_that_opened_a_thread(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """That message stands in the parent channel, although its conversation is the thread."""
    async with running(adapter, server):
        written = server.write(server.general, "hello", mention=True)
        await server.wait_for(lambda: written.thread)
        thread = server.thread_of(written)
        await adapter.acknowledge(asked(written, where(thread)), "received")
        reply = server.write(thread, "more")
        await intake.has(2)
        await adapter.acknowledge(asked(reply), "failed")
    assert written.emojis == ["👀"]
    assert reply.emojis == ["⚠️"]


async def test_reactions_are_best_effort_and_can_be_off(
    server: DiscordServer, intake: RecordingIntake, make: MakeAdapter
) -> None:
    """A refused reaction raises nothing; without reactions none is tried."""
    written = server.write(server.direct(), "hello")
    server.fail("react", NO_PERMISSION)
    await make().acknowledge(asked(written), "received")
    assert len(server.made("react")) == 1
    await make(reactions=False).acknowledge(asked(written), "received")
    assert len(server.made("react")) == 1


async def test_a_flood_in_one_chat(
    server: DiscordServer, intake: RecordingIntake, adapter: DiscordAdapter
) -> None:
    """A thousand messages over many chats come in whole, each chat in its order."""
    people = [server.add_person(f"P{number}") for number in range(40)]
    async with running(adapter, server):
        for number in range(25):
            for person in people:
                server.write(server.direct(person), str(number), author=person)
        await intake.has(1000)
    for person in people:
        own = [message.text for message in intake.messages if message.sender == person.ref]
        assert own == [str(number) for number in range(25)]
