"""Chats on Telegram that share one running Parley: how messages come together and get through."""

import base64
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.conftest import bot_settings
from tests.support.bot_api import BLOCKED, CUT, HTML_502, BotApi, Fault, flood
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer
from tests.support.process import ParleyProcess, Record

pytestmark = pytest.mark.asyncio(loop_scope="module")

MENTION = [{"type": "mention", "offset": 0, "length": 11}]

ANN = {"id": 1, "is_bot": False, "first_name": "Ann"}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

SLOW = Reply(text="This answer takes its time, about six seconds.", piece=2, pause_s=0.25)
"""Long enough for what a test does once its preview is shown, on a busy machine too."""

ANSWER = "\n\n".join([
    "# Report\n\nSome **bold** words.",
    "| planet | moons |\n|---|--:|\n" + "\n".join(f"| number {n} | {n} |" for n in range(90)),
    "```python\n" + "\n".join(f"print({n})  # comment {n}" for n in range(150)) + "\n```",
    "The *end*.",
])


@dataclass(frozen=True, slots=True)
class Bot:
    """A running bot with its platform and model, and a chat that no other test uses."""

    api: BotApi
    model: OpenAIServer
    parley: ParleyProcess
    chat: int

    @property
    def shown(self) -> list[str]:
        """What stands in the chat."""
        return self.api.shown(self.chat)

    @property
    def reactions(self) -> list[str]:
        """The bot's reactions in the chat, in order."""
        made = [it.params for it in self.api.made("setMessageReaction")]
        return [it["reaction"][0]["emoji"] for it in made if it["chat_id"] == str(self.chat)]

    def write(self, text: str) -> None:
        """Let the person write."""
        self.api.push_text(self.chat, text)

    async def said(self, text: str) -> None:
        """Wait until a message with this text stands in the chat."""
        await self.api.wait_for(lambda: any(text in message for message in self.shown))

    async def sent(self) -> Record:
        """Wait until an answer was taken by the platform; return what the log says of it."""
        admitted = await self.parley.event("message_admitted")
        return await self.parley.event("message_sent", conversation=admitted["conversation"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bot]:
    """A gateway open to everybody, on the scripted model."""
    home = tmp_path_factory.mktemp("telegram")
    async with BotApi() as api, OpenAIServer(default=Reply(text="Fine.")) as model:
        async with ParleyProcess(home, bot_settings(api, model)) as parley:
            yield Bot(api, model, parley, 0)
        assert api.violations == model.refused == []


@pytest.fixture
def bot(running: Bot, numbers: "itertools.count[int]") -> Bot:
    """The running bot in a chat of the test's own, with an empty log."""
    running.parley.check()
    running.parley.records.clear()
    return Bot(running.api, running.model, running.parley, next(numbers))


@pytest.fixture(scope="module")
def numbers() -> "itertools.count[int]":
    """Ids of chats."""
    return itertools.count(4711)


@pytest.mark.thorough
async def test_a_long_answer_keeps_its_form(bot: Bot) -> None:
    """Split within the limits: every line is there once and in order, code and table are marked."""
    bot.model.script(Reply(text=ANSWER, piece=500))
    bot.write("report")
    await bot.said("The end.")
    text = "\n".join(bot.shown)
    lines = [f"number {n} " for n in range(90)] + [f"print({n})" for n in range(150)]
    places = [text.index(line) for line in lines]
    assert places == sorted(places)
    assert all(text.count(line) == 1 for line in lines)
    assert len(bot.shown) > 1
    messages = [message for message in bot.api.messages if message.chat == bot.chat]
    assert all("pre" in {it["type"] for it in message.entities} for message in messages)
    marked = {messages[0].text[it["offset"] :][: it["length"]] for it in messages[0].entities}
    assert {"Report", "bold"} <= marked


@pytest.mark.thorough
async def test_5000_emoji_are_split_between_characters(bot: Bot) -> None:
    """None is cut into halves and none is lost."""
    bot.model.script(Reply(text="\U0001f99c" * 5000, piece=1000))
    bot.write("parrots")
    await bot.api.wait_for(lambda: sum(len(text) for text in bot.shown) >= 5000)
    assert "".join(bot.shown) == "\U0001f99c" * 5000


@pytest.mark.thorough
async def test_a_burst_is_one_turn(bot: Bot) -> None:
    """Four quick messages are answered together."""
    for word in ("one", "two", "three", "four"):
        bot.write(word)
    await bot.said("Fine.")
    assert bot.model.requests[-1].body["messages"][-1]["content"] == "one\ntwo\nthree\nfour"
    await bot.sent()
    await bot.parley.event("turn_finished")
    assert len(bot.parley.named("turn_finished")) == len(bot.shown) == 1


@pytest.mark.thorough
async def test_in_a_group_only_what_is_addressed_counts(bot: Bot) -> None:
    """A mention is answered as a reply; other talk is not even stored; members are kept apart."""
    api, group = bot.api, -bot.chat
    ann, bob = member(1, "Ann"), member(2, "Bob")
    before = len(bot.model.requests)
    api.push_text(group, "the weather is nice", ann)
    asked = api.message_update(group, "@parley_bot what do you think?", ann, entities=MENTION)
    api.push_raw(asked)
    await api.wait_for(lambda: api.shown(group))
    api.push_text(group, "@parley_bot and me?", bob, entities=MENTION)
    await api.wait_for(lambda: len(api.shown(group)) == 2)
    first = next(message for message in api.messages if message.chat == group)
    assert first.reply_to == asked["message"]["message_id"]
    query = "SELECT text FROM inbox JOIN conversation c ON c.id = conversation WHERE c.chat = ?"
    assert bot.parley.rows(query, str(group)) == [("what do you think?",), ("and me?",)]
    assert [len(it.body["messages"]) for it in bot.model.requests[before:]] == [2, 2]


@pytest.mark.thorough
async def test_a_topic_keeps_to_itself(bot: Bot) -> None:
    """Two topics of one group are two conversations, each answered where it was asked."""
    api, group = bot.api, -bot.chat
    api.add_chat(group, topics=(3, 4))
    before = len(bot.model.requests)
    for thread in (3, 4):
        place = {"message_thread_id": thread, "is_topic_message": True}
        api.push_text(group, f"@parley_bot topic {thread}", ANN, entities=MENTION, **place)
    await api.wait_for(lambda: len(api.shown(group)) == 2)
    assert {it.thread for it in api.messages if it.chat == group} == {3, 4}
    assert [len(it.body["messages"]) for it in bot.model.requests[before:]] == [2, 2]


@pytest.mark.thorough
async def test_a_closed_topic_is_no_reason_to_write_elsewhere(bot: Bot) -> None:
    """The answer is buried with its reason, the group gets nothing."""
    api, group = bot.api, -bot.chat
    api.add_chat(group, topics=(3,))
    api.close_topic(group, 3)
    place = {"message_thread_id": 3, "is_topic_message": True}
    api.push_text(group, "@parley_bot hello", ANN, entities=MENTION, **place)
    buried = await bot.parley.event("message_buried")
    assert "topic_closed" in buried["reason"].lower()
    assert api.shown(group) == []


async def test_a_group_that_becomes_a_supergroup_goes_on(bot: Bot) -> None:
    """What was said before is known after it, and answered in the new chat."""
    api, group, moved = bot.api, -bot.chat, -1_000_000 - bot.chat
    api.add_chat(group, "group")
    api.push_text(group, "@parley_bot one", ANN, entities=MENTION)
    await api.wait_for(lambda: api.shown(group))
    api.migrate(group, moved)
    api.push_text(moved, "@parley_bot two", ANN, entities=MENTION)
    await api.wait_for(lambda: api.shown(moved))
    asked = [
        it["content"] for it in bot.model.requests[-1].body["messages"] if it["role"] == "user"
    ]
    assert asked == ["one", "two"]


async def test_an_album_is_one_question(bot: Bot) -> None:
    """Its pictures, of which one has a caption, are shown to the model together."""
    for caption in ("which is nicer?", ""):
        photo = [bot.api.add_file(PNG, f"photos/{bot.chat}{len(caption)}.png")]
        bot.api.push_text(bot.chat, None, photo=photo, media_group_id="a", caption=caption)
    await bot.said("Fine.")
    parts = bot.model.requests[-1].body["messages"][-1]["content"]
    assert [it["type"] for it in parts].count("image_url") == 2
    assert "which is nicer?" in str(parts)
    assert len(bot.shown) == 1


async def test_a_file_that_is_too_large_is_told(bot: Bot) -> None:
    """Telegram refuses to hand it out; the model learns why."""
    refusal = Fault("error", 400, "Bad Request: file is too big")
    bot.api.fail("getFile", refusal)
    document = bot.api.add_file(b"x") | {"file_name": "film.mkv"}
    bot.api.push_text(bot.chat, None, document=document, caption="read this")
    await bot.said("Fine.")
    assert "film.mkv" in str(bot.model.requests[-1].body["messages"][-1])


async def test_reactions_tell_how_far_it_is(bot: Bot) -> None:
    """Eyes when it is received, another one when it is answered."""
    bot.write("hello")
    await bot.said("Fine.")
    await bot.api.wait_for(lambda: "👌" in bot.reactions)
    assert bot.reactions == ["👀", "👌"]


@pytest.mark.thorough
async def test_an_edit_of_a_waiting_message_counts(bot: Bot) -> None:
    """What is asked is the newest wording; the edit is no message of its own."""
    bot.model.script(SLOW)
    bot.write("first")
    await bot.said("This")
    update = bot.api.message_update(bot.chat, "secnod")
    bot.api.push_raw(update)
    bot.api.push_raw({"edited_message": update["message"] | {"text": "second", "edit_date": 5}})
    await bot.said("Fine.")
    messages = bot.model.requests[-1].body["messages"]
    assert [it["content"] for it in messages if it["role"] == "user"] == ["first", "second"]
    assert len(bot.shown) == 2


@pytest.mark.thorough
async def test_stop_keeps_what_was_written(bot: Bot) -> None:
    """The preview becomes the last word of the answer, marked; the model's stream is left."""
    bot.model.script(Reply(text="word " * 400, piece=5, pause_s=0.05))
    bot.write("write much")
    await bot.said("word word")
    bot.write("/stop")
    await bot.said("Stopped.")
    await bot.said("[stopped]")
    await bot.api.wait_for(bot.model.left.is_set)
    finished = await bot.parley.event("turn_finished", outcome="interrupted")
    assert len(bot.shown) == 2
    assert bot.parley.transcript(finished["conversation"])[-1][1].startswith("word word")


@pytest.mark.thorough
async def test_who_blocks_the_bot_makes_a_dead_letter(bot: Bot) -> None:
    """It is listed with its reason and its text, and sent when it is retried.

    The notice of it is refused as well, and dropped.
    """
    bot.api.fail("sendMessage", BLOCKED)
    bot.api.fail("sendMessage", BLOCKED)
    bot.write("hello")
    buried = await bot.parley.event("message_buried")
    letter = f"s{buried['conversation']}.{buried['seq']}"
    lines = (await bot.parley.run("dead-letters", "list", "--json")).stdout.splitlines()
    [listed] = [each for line in lines if (each := json.loads(line))["id"] == letter]
    assert "bot was blocked by the user" in listed["reason"]
    assert listed["text"] == "Fine."
    assert bot.shown == []
    assert (await bot.parley.run("dead-letters", "retry", letter)).code == 0
    await bot.sent()
    assert bot.shown == ["Fine."]
    assert letter not in (await bot.parley.run("dead-letters", "list")).stdout


@pytest.mark.thorough
async def test_a_flood_wait_is_kept(bot: Bot) -> None:
    """Nothing goes to the chat before the seconds are over that Telegram asked for."""
    bot.api.fail("sendMessage", flood(2))
    bot.write("hello")
    await bot.sent()
    first, second = bot.api.rate_stamps(bot.chat)
    assert second - first >= 2
    assert bot.shown == ["Fine."]
    assert (await bot.parley.event("send_delayed"))["delay_s"] == 2


@pytest.mark.thorough
async def test_a_proxys_error_is_repeated_with_a_mark(bot: Bot) -> None:
    """A 502 comes from what stands before Telegram: whether the message was shown is not known."""
    bot.api.fail("sendMessage", HTML_502)
    bot.write("hello")
    sent = await bot.sent()
    assert sent["resent"] is True
    assert bot.shown == ["(re-sent)\nFine."]


@pytest.mark.thorough
async def test_a_lost_answer_is_sent_again_with_a_mark(bot: Bot) -> None:
    """Where Telegram took the message but could not say so, the second one says what it is."""
    bot.api.fail("sendMessage", CUT)
    bot.write("hello")
    sent = await bot.sent()
    assert sent["resent"] is True
    assert bot.shown == ["Fine.", "(re-sent)\nFine."]


@pytest.mark.thorough
async def test_a_preview_is_replaced_even_if_the_edit_gets_lost(bot: Bot) -> None:
    """An edit can be repeated: one message, no mark."""
    bot.model.script(SLOW)
    bot.write("hello")
    await bot.said("This")
    bot.api.fail("editMessageText", CUT)
    sent = await bot.sent()
    assert sent["resent"] is False
    assert bot.shown == [SLOW.text]


@pytest.mark.thorough
async def test_trouble_while_polling_loses_nothing(bot: Bot) -> None:
    """A 502 to a poll is logged and reconnected from."""
    bot.api.fail("getUpdates", HTML_502)
    bot.write("first")
    await bot.said("Fine.")
    disconnected = await bot.parley.event("adapter_disconnected")
    assert "502" in disconnected["reason"]
    bot.write("second")
    await bot.api.wait_for(lambda: bot.shown == ["Fine.", "Fine."])


def member(number: int, name: str) -> dict[str, Any]:
    """Return a person who writes in a group."""
    return {"id": number, "is_bot": False, "first_name": name}
