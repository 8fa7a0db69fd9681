"""The same scenarios on every platform: the real client libraries against strict servers."""

import base64
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from agent.errors import ModelUnreachable
from agent.messages import text_of
from agent.models.base import ModelRequest
from gateway.access import pairing
from gateway.pipeline import delivery
from tests.e2e.platforms.driver import Driver
from tests.e2e.platforms.scenario import Scene, scene
from tests.support.gateway import HeldModel, newest_question
from tests.support.scripted_model import Step, tool_call

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ROWS = "\n".join(f"| row{n} | {n * n} | f{n}() |" for n in range(40))
PARAGRAPHS = "\n\n".join(f"Paragraph{n} " + "lorem ipsum " * 30 for n in range(20))
CODE = "\n".join(f"print('line{n}')" for n in range(120))
LONG = (
    f"# Report\n\n{PARAGRAPHS}\n\n| name | square | code |\n|---|---:|---|\n{ROWS}\n\n"
    f"```python\n{CODE}\n```\n\nThe **end**."
)
RESENT = "(re-sent)"
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "as a file": ("send_file", {"name": "list.csv", "text": "a,b\n1,2\n"}),
    "a choice": ("clarify", {"question": "Which?", "choices": ("red", "green")}),
    "errand": ("errand", {"task": "the *long* way"}),
}
"""How a question ends → the tool that it is answered with."""


class Play(Protocol):
    """Begins a scene; the settings are by section."""

    async def __call__(self, **sections: dict[str, Any]) -> Scene: ...


class Answers:
    """What the model does: a report, a file, one failure, or it says what it was told."""

    def __init__(self) -> None:
        self.fails = True

    def __call__(self, request: ModelRequest) -> Step:
        question = newest_question(request)
        if request.messages[-1]["role"] == "tool":
            return "There it is."
        if question.endswith("report"):
            return LONG
        for words, call in CALLS.items():
            if question.endswith(words):
                return [tool_call(*call)]
        if question.endswith("fail") and self.fails:
            self.fails = False
            return ModelUnreachable("scripted")
        return f"re: {question}"


def asked_for(request: ModelRequest) -> list[str]:
    """Return the questions of a request."""
    return [text_of(message) for message in request.messages if message["role"] == "user"]


@pytest.fixture
async def play(
    driver: Driver,
    database_file: Path,
    model: HeldModel,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Play]:
    """Begins scenes that all end with the test, on one PARLEY_HOME."""
    monkeypatch.setattr(delivery, "backoff_s", lambda _attempt: 0.05)
    async with AsyncExitStack() as scenes:

        async def begin(**sections: dict[str, Any]) -> Scene:
            begun = scene(driver, database_file.parent, model, **sections)
            return await scenes.enter_async_context(begun)

        yield begin
    assert driver.violations == []


@pytest.fixture
def model() -> HeldModel:
    """Does what `Answers` says, when it is let."""
    return HeldModel(Answers())


async def test_a_text_is_answered(play: Play) -> None:
    """The answer stands in the chat once, and the message is marked as answered."""
    on = await play()
    ref = await on.ann.say("hello")
    assert await on.answered(on.ann) == ["re: hello"]
    if on.driver.reacts:
        await on.until(lambda: on.ann.marks(ref) == ["answered"])
    assert on.ann.texts() == ["re: hello"]


async def test_a_long_answer_is_whole_and_readable(play: Play) -> None:
    """Headings, paragraphs, a table and code: every word arrives, in order, once."""
    on = await play()
    await on.ann.say("report")
    await on.until(lambda: any("The end." in text for text in on.ann.texts()))
    words = re.findall(r"Paragraph\d+|row\d+|line\d+|Report|The end", "\n".join(on.ann.texts()))
    expected = ["Report", *(f"Paragraph{n}" for n in range(20)), *(f"row{n}" for n in range(40))]
    assert words == [*expected, *(f"line{n}" for n in range(120)), "The end"]
    rows = [line for text in on.ann.texts() for line in text.splitlines() if "row" in line]
    assert all(re.search(rf"row{n}\b.*\b{n * n}\b.*f{n}\(\)", row) for n, row in enumerate(rows))


async def test_a_mention_opens_a_conversation(play: Play) -> None:
    """What is said in its room belongs to one conversation; nothing lands elsewhere."""
    on = await play()
    room = await on.driver.mention("first")
    [answer] = await on.answered(room)
    assert re.fullmatch(r"re: (\w+: )?first", answer)
    await room.say("second")
    assert (await on.answered(room, 2))[1].endswith("second")
    assert asked_for(on.model.requests[-1])[0].endswith("first")
    assert len(asked_for(on.model.requests[-1])) == 2
    assert on.driver.elsewhere() == []


async def test_the_model_sees_an_image(play: Play) -> None:
    """Its bytes are part of the request, beside the words that came with it."""
    on = await play()
    await on.ann.say("look", image=PNG)
    await on.answered(on.ann)
    content = on.model.requests[-1].messages[-1]["content"]
    assert isinstance(content, list)
    [image] = [part for part in content if part["type"] == "image_url"]
    assert image["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert newest_question(on.model.requests[-1]).startswith("look")


async def test_a_file_that_a_tool_made_is_shown(play: Play) -> None:
    """With its name and its bytes, once."""
    on = await play()
    await on.ann.say("as a file")
    await on.until(on.ann.files)
    assert on.ann.files() == [("list.csv", b"a,b\n1,2\n")]
    assert await on.answered(on.ann) == ["There it is."]


async def test_tools_show_in_one_message_that_becomes_the_answer(play: Play) -> None:
    """What runs is told as long as it does, as plain text; nothing else is left of it."""
    on = await play()
    room = await on.driver.mention("run the errand")
    await on.until(room.growing)
    [status] = room.growing()
    assert re.match(r"\N{WRENCH} errand: `?the \*long\* way`?", status)
    on.errand.set()
    assert await on.answered(room) == ["There it is."]
    await on.until(lambda: not room.growing())
    assert room.texts() == ["There it is."]


async def test_a_button_asks_again(play: Play) -> None:
    """A failed turn offers to try again; pressing that is answered, and the button is gone."""
    on = await play()
    await on.ann.say("fail")
    await on.until(lambda: on.ann.buttons() == ["Try again"])
    await on.ann.press("Try again")
    await on.until(lambda: "re: fail" in on.ann.texts())
    await on.until(lambda: on.ann.buttons() == [])
    assert await on.said_by_people() == ["fail", "fail"]


async def test_the_buttons_of_a_stopped_question_go(play: Play) -> None:
    """At once, with a note of it; nothing else changes, and nothing is said twice."""
    on = await play()
    await on.ann.say("a choice")
    await on.until(lambda: on.ann.buttons() == ["red", "green"] and on.logged("turn_suspended"))
    await on.ann.say("/stop")
    await on.until(lambda: on.ann.buttons() == [] and on.logged("turn_finished"))
    await on.gateway.delivery.wait_idle()
    [asked] = [text for text in on.ann.texts() if "Which?" in text]
    assert "stopped" in asked or on.driver.name == "web"
    assert not on.logged("buttons_left")


async def test_what_waited_beside_a_question_is_answered_last(play: Play) -> None:
    """Below what the turn that had asked says when it goes on."""
    on = await play()
    await on.ann.say("a choice")
    await on.until(lambda: on.ann.buttons() == ["red", "green"] and on.logged("turn_suspended"))
    await on.ann.say("a picture", image=PNG)
    await on.until(lambda: len(on.logged("message_admitted", outcome="queued")) == 2)
    await on.ann.press("red")
    await on.until(lambda: len(on.logged("turn_finished")) == 2)
    await on.gateway.delivery.wait_idle()
    await on.until(lambda: any("re: a picture" in text for text in on.ann.texts()))
    *_, first, last = on.ann.texts()
    assert (first, last.partition("\n")[0]) == ("There it is.", "re: a picture")


async def test_a_native_command_is_answered(play: Play) -> None:
    """Through whatever the platform has for commands."""
    on = await play()
    await on.ann.command("status")
    [text] = await on.answered(on.ann)
    assert "Model: scripted" in text
    assert on.model.requests == []


async def test_an_unknown_command_is_answered_with_the_nearest(play: Play) -> None:
    """Nothing of it reaches the model; a path does."""
    on = await play()
    await on.ann.say(f"{on.driver.slash}stauts")
    [text] = await on.answered(on.ann)
    assert "Did you mean /status?" in text.replace("`", "")
    assert on.model.requests == []
    await on.ann.say("/usr/bin")
    assert (await on.answered(on.ann, 2))[-1] == "re: /usr/bin"


async def test_a_burst_is_one_turn(play: Play) -> None:
    """Five messages at once are read together, in order."""
    on = await play(queue={"debounce_ms": 1000})
    for n in range(5):
        await on.ann.say(f"part {n}")
    await on.until(lambda: any("part 4" in text for text in on.ann.texts()))
    told = "\n".join(await on.said_by_people())
    assert re.findall(r"part \d", told) == [f"part {n}" for n in range(5)]
    assert len(on.model.requests) <= 2


async def test_an_edit_is_a_new_version(play: Play) -> None:
    """Before its turn the new wording counts; after it the next turn is told."""
    on = await play()
    held = on.model.hold("wait")
    await on.ann.say("wait")
    await on.until(lambda: on.model.waiting)
    ref = await on.ann.say("Bonn")
    await on.until(lambda: len(on.logged("message_admitted", outcome="queued")) == 2)
    await on.ann.edit(ref, "Berlin")
    await on.until(lambda: on.logged("message_admitted", outcome="updated"))
    held.set()
    assert (await on.answered(on.ann, 2))[-1] == "re: Berlin"
    await on.ann.edit(ref, "Hamburg")
    await on.until(lambda: len(on.logged("message_admitted", outcome="updated")) == 2)
    await on.answered(on.ann, 3)
    await on.ann.say("which one?")
    await on.answered(on.ann, 4)
    assert "Hamburg" in newest_question(on.model.requests[-1])
    assert len(on.model.requests) == 3


async def test_an_edit_of_a_stopped_message_asks_again(play: Play) -> None:
    """It was stopped in the middle of its answer: the new wording gets one."""
    on = await play()
    on.model.hold("wait")
    ref = await on.ann.say("wait")
    await on.until(lambda: on.model.waiting)
    await on.ann.say(f"{on.driver.slash}stop")
    await on.until(lambda: on.logged("turn_finished", outcome="interrupted"))
    await on.ann.edit(ref, "go on")
    await on.until(lambda: "re: go on" in on.ann.texts())
    assert newest_question(on.model.requests[-1]) == "go on"


async def test_an_edit_of_a_failed_message_asks_again(play: Play) -> None:
    """No model answered it; nobody has to press a button first."""
    on = await play()
    ref = await on.ann.say("fail")
    await on.until(lambda: on.ann.buttons() == ["Try again"])
    await on.ann.edit(ref, "work")
    await on.until(lambda: "re: work" in on.ann.texts())
    assert newest_question(on.model.requests[-1]) == "work"


async def test_an_edit_of_an_answered_message_offers_to_ask_again(play: Play) -> None:
    """With a button; pressing it answers the newest wording, and the button is gone."""
    on = await play()
    ref = await on.ann.say("Bonn")
    await on.answered(on.ann)
    await on.ann.edit(ref, "Berlin")
    await on.until(lambda: on.ann.buttons() == ["Ask again"])
    assert len(on.model.requests) == 1
    await on.ann.press("Ask again")
    await on.until(lambda: "re: Berlin" in on.ann.texts())
    await on.until(lambda: on.ann.buttons() == [])
    assert len(on.model.requests) == 2


async def test_a_flood_wait_is_honoured(play: Play) -> None:
    """The answer comes when the platform allows it, once."""
    on = await play()
    on.driver.flood(1)
    await on.ann.say("hello")
    assert await on.answered(on.ann) == ["re: hello"]
    assert on.ann.texts() == ["re: hello"]


async def test_a_lost_reply_is_resolved(play: Play) -> None:
    """The message was shown and nobody said so: it is shown once, or marked as sent again."""
    on = await play()
    on.driver.lose_reply()
    await on.ann.say("hello")
    await on.until(lambda: on.logged("message_sent"))
    again = [] if on.driver.once else [f"{RESENT}\nre: hello"]
    await on.until(lambda: len(on.ann.texts()) > len(again))
    assert on.ann.texts() == ["re: hello", *again]


async def test_what_is_written_while_disconnected_is_answered(play: Play) -> None:
    """Once, after the connection is back."""
    on = await play()
    await on.ann.say("hello")
    assert await on.answered(on.ann) == ["re: hello"]
    await on.driver.disconnect()
    await on.ann.say("still there?")
    assert await on.answered(on.ann, 2) == ["re: hello", "re: still there?"]


async def test_a_duplicate_is_answered_once(play: Play) -> None:
    """Delivered twice, it is one turn."""
    on = await play()
    ref = await on.ann.say("hello")
    await on.answered(on.ann)
    await on.driver.redeliver(ref)
    await on.ann.say("next")
    assert await on.answered(on.ann, 2) == ["re: hello", "re: next"]
    assert await on.said_by_people() == ["hello", "next"]


async def test_a_stranger_is_let_in_by_an_owner(play: Play, driver: Driver) -> None:
    """The owner is asked in their chat and presses a button; the stranger is told, and answered."""
    on = await play(access={"mode": "pairing", "owners": [driver.person_id(1)], "rate_per_min": 0})
    await on.ann.say("hello")
    assert await on.answered(on.ann) == ["re: hello"]
    bob = driver.direct(2)
    await bob.say("me too")
    await on.until(bob.texts)
    if driver.has_strangers:
        assert "re: me too" not in bob.texts()
        await on.until(lambda: on.ann.buttons() == ["Approve", "Deny"])
        await on.ann.press("Approve")
        await on.until(lambda: len(bob.texts()) == 2)
        await bob.say("and now?")
    await on.until(lambda: bob.texts()[-1] in {"re: and now?", "re: me too"})
    assert on.driver.has_strangers == ("re: and now?" in bob.texts())


async def test_who_asked_before_there_was_an_owner_is_announced_to_them(
    play: Play, driver: Driver
) -> None:
    """The new owner is asked about them with buttons, as about all who come later."""
    on = await play(access={"mode": "pairing", "owners": [], "rate_per_min": 0})
    if not driver.has_strangers:
        assert on.driver.name == "web"
        return
    bob = driver.direct(2)
    await bob.say("let me in")
    await on.until(bob.texts)
    gateway = on.gateway
    code = await pairing.owner_code(gateway.database, gateway.settings, gateway.replica.id)
    assert code is not None
    await on.ann.say(code)
    await on.until(lambda: on.ann.buttons() == ["Approve", "Deny"])
    await on.ann.press("Approve")
    await on.until(lambda: len(bob.texts()) == 2)


async def test_a_stranger_who_mentions_the_bot_is_shown_the_door(
    play: Play, driver: Driver
) -> None:
    """On Discord: once a day, in the channel, and no thread is opened; elsewhere in silence."""
    owner = driver.person_id(1)
    on = await play(access={"mode": "pairing", "owners": [owner], "rate_per_min": 0})
    if not driver.has_strangers:
        assert on.driver.name == "web"
        return
    for words in ("hello", "are you there?"):
        await driver.mention(words, 2)
    await on.until(lambda: len(on.logged("message_admitted", outcome="denied")) == 2)
    await on.gateway.delivery.wait_idle()
    told = ["direct message" in text for text in driver.elsewhere()]
    assert told == ([True] if driver.name == "discord" else [])
    assert on.model.requests == []
