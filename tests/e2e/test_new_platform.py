"""A platform is a folder: one that the product does not know runs in it with no other edit."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer
from tests.support.process import ParleyProcess

TOY = {"token": "t0ken-of-toy", "greeting": "Squeak! "}
FRIEND = "toy-1"


class WithToy(ParleyProcess):
    """`parley` with the folder `tests/support/toy_platform/toy` among those in `adapters/`."""

    program = ("-m", "tests.support.toy_platform")

    async def say(self, text: str, sender: str = FRIEND, number: int = 1) -> None:
        """Write to the toy."""
        message = {"id": f"m{number}", "chat": "box-1", "sender": sender, "text": text}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self.url}/toy/default", json=message) as response,
        ):
            assert response.status == 200

    async def answer(self) -> str:
        """Wait for what the toy shows next."""
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{self.url}/toy/default") as response,
        ):
            text: str = (await response.json())["text"]
            return text


@pytest.fixture
async def model() -> AsyncIterator[OpenAIServer]:
    """A model that answers "Fine."."""
    async with OpenAIServer(default=Reply(text="Fine.")) as server:
        yield server


def settings(model: OpenAIServer, **access: Any) -> dict[str, Any]:
    """Return settings with the toy on; `access` as given."""
    return {
        "model": {"base_url": model.url, "name": "double"},
        "platforms": {"toy": TOY},
        "access": {"mode": "allowlist", **access},
    }


async def test_a_listed_person_is_answered(tmp_path: Path, model: OpenAIServer) -> None:
    """Settings, members, prompt hint, levels of loggers and start follow from `platform.py`.

    Only those in `access.toy` may talk: the first to be answered is the friend.
    """
    async with WithToy(tmp_path, settings(model, toy=[FRIEND])) as parley:
        await parley.say("let me in", sender="toy-2", number=1)
        await parley.say("hello", number=2)
        assert await parley.answer() == "Squeak! Fine."
        assert "let me in" not in json.dumps([each.body for each in model.requests])
        system = json.dumps(model.requests[-1].body["messages"][0], ensure_ascii=False)
        assert "You are in a toy: only short words can be read." in system
        await parley.event("credentials_checked", subject="toy:default", outcome="accepted")
        await parley.event("library_logged", logger="toy_sdk")
        of_sdk = [each["message"] for each in parley.named("library_logged", logger="toy_sdk")]
        assert of_sdk == ["the toy squeaks"]
        assert parley.rows("SELECT platform, chat FROM conversation") == [("toy", "box-1")]


@pytest.mark.thorough
async def test_its_settings_are_shown_and_checked(tmp_path: Path, model: OpenAIServer) -> None:
    """The secret is masked, and a wrong id is refused in its own words."""
    good, bad = WithToy(tmp_path, settings(model)), WithToy(tmp_path / "b", {})
    (tmp_path / "parley.yaml").write_text(json.dumps(good.settings))
    shown = await good.run("config", "show")
    assert "platforms.toy.greeting" in shown.stdout
    assert "t0ken-of-toy" not in shown.stdout
    bad.home.mkdir()
    wrong = {"access": {"toy": ["Bo"], "owners": ["toy:Cy"], "groups": {"toy:x": {}}}}
    (bad.home / "parley.yaml").write_text(json.dumps(wrong))
    refused = await bad.run("config", "show")
    assert refused.code != 0
    assert "access.toy: 'Bo' is not a toy id (toy-…)" in refused.stderr
    assert "access.owners: 'toy:Cy': 'Cy' is not a toy id" in refused.stderr
    assert "'toy:x': 'x' is not an id of a chat on toy" in refused.stderr
