"""The list of conversations, its filters and its search."""

from pathlib import Path

import pytest

from gateway.console.pages.conversations import address, wanted_of
from gateway.storage.reports.conversation_list import Wanted
from tests.gateway.agent_ports.test_search import until_fed
from tests.support.console import console

NOTHING = dict.fromkeys(("query", "platform", "account", "person", "state", "since", "until"), "")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, Wanted()),
        ({"person": "telegram:7"}, Wanted("telegram", person="7")),
        ({"person": "U7:x", "platform": "slack"}, Wanted("slack", person="U7:x")),
        ({"state": "failed"}, Wanted(state="failed")),
        ({"state": "anything"}, Wanted()),
        ({"since": "1970-01-02", "until": "1970-01-02"}, Wanted(since=86_400, until=172_800)),
        ({"since": "yesterday", "until": "9999-12-31"}, Wanted()),
    ],
)
def test_filters_are_what_they_mean(given: dict[str, str], wanted: Wanted) -> None:
    """What is none of their values is no condition."""
    assert wanted_of(NOTHING | given, "UTC") == wanted


def test_an_address_has_what_was_asked() -> None:
    """And where the page begins."""
    assert address(NOTHING | {"person": "a&b"}, 7) == "/admin/conversations?person=a%26b&before=7"
    assert address(NOTHING) == "/admin/conversations"


async def test_conversations_of_all_platforms_are_listed(tmp_path: Path) -> None:
    """The newest first; what people write is text."""
    async with console(tmp_path) as running, running.browser() as browser:
        chat = running.serving.chat
        await chat.ask("<script>alert(1)</script>", sender_name="<img src=x>")
        await chat.ask("second", chat="c2")
        found = (await browser.get("/admin/conversations")).text
        assert found.index("second") < found.index("alert(1)")
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in found
        assert "&lt;img src=x&gt;" in found
        assert "<script>alert" not in found
        none = (await browser.get("/admin/conversations?state=failed&platform=telegram")).text
        assert "There are no such conversations." in none
        assert "<option selected>telegram</option>" in none


@pytest.mark.thorough
async def test_a_search_shows_where_it_was_said(tmp_path: Path) -> None:
    """The words of the question are text, too."""
    async with console(tmp_path) as running, running.browser() as browser:
        await running.serving.chat.ask("my zebra has <u>stripes</u>")
        await until_fed(running.database)
        found = (await browser.get("/admin/conversations?query=zebra")).text
        assert "my zebra has &lt;u&gt;stripes&lt;/u&gt;" in found
        assert "/admin/conversations/1?before=21#m1" in found
        none = (await browser.get('/admin/conversations?query="><script>x')).text
        assert "No message holds these words" in none
        assert "<script>x" not in none
