"""Keys and tokens are tried at the start, and replaced while the gateway runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from adapters.errors import AdapterDisconnected, AdapterRefused
from adapters.registry import account_types
from agent.errors import (
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelUnreachable,
    RateLimited,
)
from agent.models.base import ChatModel
from agent.safety.redaction import MASK
from agent.settings import ModelSettings
from gateway.settings.references import References
from gateway.settings.tree import Settings
from gateway.supervision import credentials
from gateway.supervision.accounts import Supervised
from gateway.supervision.credentials import (
    Checked,
    Configured,
    Reloaded,
    Rotation,
    learn_windows,
    of_platforms,
)
from gateway.wiring import build_agent, build_line
from tests.agent.models.clients import BOTH, Double
from tests.support.anthropic_server import AnthropicServer
from tests.support.gateway import running, settings_of
from tests.support.model_server import Fault, Reply
from tests.support.process import free_port
from tests.support.recording_adapter import RecordingAdapter
from tests.support.responses_server import ResponsesServer
from tests.support.scripted_model import ScriptedModel
from tests.support.slack.server import SlackServer
from tests.support.thorough import WAIT_S

REFUSAL = AdapterRefused("Telegram does not know this bot; correct platforms.telegram.token")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start waits for platforms for seconds, which a busy machine takes for itself."""
    monkeypatch.setattr(credentials, "PLATFORMS_WITHIN_S", WAIT_S)


async def checked(*outages: Exception) -> tuple[list[Checked], list[Any]]:
    """Return what is found of a platform whose first runs end so, and what was logged."""
    adapter = RecordingAdapter()
    adapter.connected = not outages
    adapter.outages += outages
    supervised = Supervised(adapter)
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(supervised.run())
            found = await of_platforms([supervised], asyncio.Event())
            running.cancel()
    return found, [line for line in logs if line["event"] == "credentials_checked"]


@pytest.mark.parametrize(
    ("outages", "outcome", "level"),
    [
        ((), "accepted", "info"),
        ((REFUSAL,), "refused", "error"),
        ((AdapterDisconnected("no route"),), "unreachable", "warning"),
    ],
)
async def test_a_platform_shows_by_its_first_steps_what_its_token_is_worth(
    outages: tuple[Exception, ...], outcome: str, level: str
) -> None:
    """One event for each account, and the reason that names the setting."""
    [finding], [event] = await checked(*outages)
    assert (finding.subject, finding.outcome) == ("telegram:default", outcome)
    assert all(str(outage) in finding.text for outage in outages)
    assert (event["outcome"], event["log_level"]) == (outcome, level)


async def connected_with(scopes: set[str]) -> Checked:
    """Return what is found of an app of Slack that is connected and has lost these scopes."""
    async with SlackServer() as slack:
        slack.api.scopes -= scopes
        tokens = {"bot_token": slack.identity.bot_token, "app_token": slack.identity.app_token}
        block = account_types()["slack"].model_validate({**tokens, "base_url": slack.base_url})
        adapter = RecordingAdapter()
        adapter.platform = "slack"
        [finding] = await of_platforms([Supervised(adapter)], asyncio.Event(), [("slack", block)])
    return finding


async def test_what_an_app_lacks_is_told_although_it_is_connected() -> None:
    """It works, but for that."""
    finding = await connected_with({"files:read"})
    assert (finding.outcome, finding.text) == ("accepted", "connected as parley")
    assert "add files:read" in finding.lacks[0]
    first, second = credentials.checked_lines([finding])
    assert (first, second.startswith("    ! ")) == ("  ✓ slack:default: connected as parley", True)
    assert (await connected_with(set())).lacks == ()


async def test_who_does_not_answer_again_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter that is connected is connected."""
    monkeypatch.setattr(credentials, "LEAST_S", 0.0)
    monkeypatch.setattr(credentials, "PLATFORMS_WITHIN_S", 0.0)
    finding = await connected_with({"files:read"})
    assert (finding.outcome, finding.text, finding.lacks) == ("accepted", "connected", ())


async def test_a_question_that_breaks_ends_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK may make anything of an odd answer; it is in the log."""

    async def broken(*_: object) -> None:
        raise KeyError("user")

    monkeypatch.setattr(credentials, "check", broken)
    with capture_logs() as logs:
        finding = await connected_with(set())
    assert (finding.outcome, finding.text) == ("accepted", "connected")
    assert "account_not_asked" in [line["event"] for line in logs]


def silent() -> Supervised:
    """Return a platform that neither answers nor refuses."""
    adapter = RecordingAdapter()
    adapter.connected = False
    return Supervised(adapter)


async def test_a_platform_that_hangs_holds_the_start_up_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is said that it is not there yet; the start goes on."""
    monkeypatch.setattr(credentials, "PLATFORMS_WITHIN_S", 0.0)
    [finding] = await of_platforms([silent()], asyncio.Event())
    assert finding.outcome == "unreachable"


async def test_a_stop_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a platform in a gateway that is to end."""
    stop = asyncio.Event()
    stop.set()
    monkeypatch.setattr(credentials, "PLATFORMS_WITHIN_S", 600.0)
    async with asyncio.timeout(30):
        [finding] = await of_platforms([silent()], stop)
    assert finding.outcome == "unreachable"


def test_what_has_to_be_changed_is_printed_first() -> None:
    """With what it lacks below; no control characters of a provider reach the terminal."""
    fine = Checked("main", "accepted", "answers")
    wrong = Checked("spare", "refused", "no\x1b[2J")
    lacking = Checked("discord:default", "accepted", "connected", ("an intent is off",))
    first, *others = credentials.checked_lines([fine, lacking, wrong])
    assert first.startswith("  ✗ spare: no")
    assert "\x1b" not in first
    assert others == [
        "  ✓ main: answers",
        "  ✓ discord:default: connected",
        "    ! an intent is off",
    ]


OLD, NEW = "sk-old-8Rk2Vb7Tq", "sk-new-3Hm9Xc4Wd"
TOKEN, NEW_TOKEN = "123456:old-token-of-a-bot", "123456:new-token-of-a-bot"

NOBODY_THERE = {"base_url": f"http://127.0.0.1:{free_port()}/v1", "name": "m-1"}


def referring(home: Path, **model: Any) -> Settings:
    """Return settings whose key and token lie in files."""
    for name, value in (("key", OLD), ("token", TOKEN)):
        (home / name).write_text(f"{value}\n")
    settings = settings_of(
        home,
        model={"provider": "openai", "api_key": f"file:{home}/key", **NOBODY_THERE, **model},
        platforms={"telegram": [{"token": f"file:{home}/token"}]},
    )
    resolved: Settings = References({}).resolved(settings)
    return resolved


Rotating = Callable[[Settings], Rotation]


@pytest.fixture
async def rotation_of() -> AsyncIterator[Rotating]:
    """Return what makes the rotation of the agent that settings name."""
    models: list[ChatModel] = []

    def make(settings: Settings) -> Rotation:
        agent = build_agent(settings, build_line(settings))
        models.extend(agent.models)
        return Rotation(settings, agent.models, agent.recovery.rests)

    yield make
    for model in models:
        await model.close()


async def test_nothing_has_changed(tmp_path: Path, rotation_of: Rotating) -> None:
    """Everything goes on as it is."""
    assert await rotation_of(referring(tmp_path)).reload() == Reloaded(references=2)


async def test_nothing_refers_to_a_secret(tmp_path: Path, rotation_of: Rotating) -> None:
    """Then there is nothing to read, which is another thing than that nothing has changed."""
    assert await rotation_of(settings_of(tmp_path)).reload() == Reloaded(references=0)


async def test_models_take_their_keys_and_platforms_need_a_restart(
    tmp_path: Path, rotation_of: Rotating
) -> None:
    """Each is named by its setting."""
    rotation = rotation_of(referring(tmp_path))
    (tmp_path / "key").write_text(NEW)
    (tmp_path / "token").write_text(NEW_TOKEN)
    done = await rotation.reload()
    assert done == Reloaded(("model.api_key",), ("platforms.telegram.0.token",), references=2)
    assert await rotation.reload() == Reloaded(references=2)


async def test_what_cannot_be_read_goes_on_as_it_was(tmp_path: Path, rotation_of: Rotating) -> None:
    """The others are renewed all the same."""
    rotation = rotation_of(referring(tmp_path))
    (tmp_path / "token").unlink()
    (tmp_path / "key").write_text(NEW)
    done = await rotation.reload()
    assert done.renewed == ("model.api_key",)
    [line] = done.unreadable
    assert line.startswith(f"platforms.telegram.0.token: file:{tmp_path}/token cannot be read: No")


async def test_a_key_that_no_header_can_carry(tmp_path: Path, rotation_of: Rotating) -> None:
    """It is not renewed: the one before stays in use, and each look says so."""
    settings = referring(tmp_path)
    rotation = rotation_of(settings)
    (tmp_path / "key").write_text("schlüssel-12")
    for _ in range(2):
        done = await rotation.reload()
        assert (done.renewed, done.restart) == ((), ())
        [line] = done.unreadable
        assert line == f"model.api_key: file:{tmp_path}/key has characters that no key can have"
        assert settings.model.api_key is not None
        assert settings.model.api_key.get_secret_value() == OLD


@pytest.mark.parametrize("double", BOTH)
async def test_a_new_key_that_the_provider_refuses(
    tmp_path: Path, double: Double, rotation_of: Rotating
) -> None:
    """It is in use, as the reference has it, and is told as refused, not as renewed."""
    async with double(OLD) as server:
        server.key_faults[NEW] = Fault(status=401, error="authentication_error")
        provider = "anthropic" if double is AnthropicServer else "openai"
        settings = referring(tmp_path, provider=provider, base_url=server.url, name="m-1")
        rotation = rotation_of(settings)
        (tmp_path / "key").write_text(NEW)
        done = await rotation.reload()
        assert (done.renewed, done.unreadable) == ((), ())
        assert done.refused == ("model.api_key: the provider refuses it",)
        (tmp_path / "key").write_text(OLD)
        assert (await rotation.reload()).renewed == ("model.api_key",)


@pytest.mark.parametrize("double", BOTH)
async def test_a_key_that_the_provider_no_longer_takes(tmp_path: Path, double: Double) -> None:
    """It is read again, and the message is answered; neither key is in the log or the answer."""
    async with double(NEW) as server:
        provider = "anthropic" if double is AnthropicServer else "openai"
        api = "responses" if double is ResponsesServer else "auto"
        block = {"provider": provider, "base_url": server.url, "name": "m-1", "api": api}
        settings = referring(tmp_path, **block)
        agent = build_agent(settings, build_line(settings))
        (tmp_path / "key").write_text(NEW)
        server.script(Reply(text=f"It is {NEW}, not {OLD}."))
        async with running(tmp_path, agent) as chat:
            assert await chat.ask("Which key?") == f"It is {MASK}, not {MASK}."
            assert chat.events("model_call_failed")[0]["action"] == "renew_key"
            assert NEW not in str(chat.log)


TABLE_TOKENS = 200_000


class Told(ScriptedModel):
    """A model whose provider is asked: it answers, fails, or never answers (None)."""

    def __init__(self, answer: int | ModelError | None, name: str = "told") -> None:
        super().__init__([], name=name, context_length=TABLE_TOKENS)
        self.answer = answer
        self.looked_up = 0

    @override
    async def look_up(self) -> int | None:
        self.looked_up += 1
        if self.answer is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(self.answer, ModelError):
            raise self.answer
        return self.answer


def block_of(*models: ScriptedModel, setting: int | None = None) -> Configured:
    """Return a block whose models begin with what setting or table say."""
    for model in models:
        model.context_length = setting or TABLE_TOKENS
    return Configured(ModelSettings(context_length=setting), models)


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


def beside_findings(logs: list[Any]) -> list[Any]:
    """Return what was logged beside what each key was found to be."""
    return [line for line in logs if line["event"] != "credentials_checked"]


async def test_what_the_provider_says_holds_for_all_keys() -> None:
    """The first key that gets an answer decides, in place of the table's guess."""
    first, second = Told(CredentialsRefused("401")), Told(900_000)
    await learn_windows([block_of(first, second)])
    assert (first.context_length, second.context_length) == (900_000, 900_000)
    assert (first.looked_up, second.looked_up) == (1, 1)


@pytest.mark.parametrize(
    ("answer", "outcome", "said"),
    [
        (0, "accepted", "its server answers"),
        (CredentialsRefused("401"), "refused", "correct model.api_key"),
        (CreditUsedUp("402"), "no_credit", "no credit left"),
        (ModelUnreachable("down"), "unreachable", "does not answer now"),
        (RateLimited("slow"), "unreachable", "does not answer now"),
    ],
)
async def test_each_key_is_checked(
    answer: int | ModelError, outcome: str, said: str, logs: list[Any]
) -> None:
    """Before anybody has written a message; the event says no more than the page."""
    [finding] = await learn_windows([block_of(Told(answer))])
    assert (finding.subject, finding.outcome) == ("told", outcome)
    assert said in finding.text
    assert logs[-1]["outcome"] == outcome


async def test_the_setting_of_a_refused_key_is_named() -> None:
    """Which block, and which of its keys."""
    refused = CredentialsRefused("401")
    block = block_of(Told(0), Told(refused))._replace(place="fallbacks.0")
    _, second = await learn_windows([block])
    assert second.text == "the provider refuses the key; correct fallbacks.0.api_keys"


async def test_a_model_inside_parley_is_not_checked(tmp_path: Path) -> None:
    """It has no key, and no network call is made."""
    assert await learn_windows(build_line(settings_of(tmp_path))) == []


async def test_a_window_that_the_settings_name_stays(logs: list[Any]) -> None:
    """Where the provider's is larger: somebody wants shorter requests."""
    model = Told(900_000)
    await learn_windows([block_of(model, setting=50_000)])
    assert (model.context_length, beside_findings(logs)) == (50_000, [])


async def test_a_window_that_is_too_large_is_capped(logs: list[Any]) -> None:
    """With a warning that names both figures; for all keys."""
    models = Told(128_000), Told(ModelUnreachable("down"))
    await learn_windows([block_of(*models, setting=500_000)])
    assert [model.context_length for model in models] == [128_000, 128_000]
    assert beside_findings(logs) == [
        {
            "event": "window_too_large",
            "log_level": "warning",
            "model": "told",
            "wanted": 500_000,
            "context_length": 128_000,
        }
    ]


async def test_each_block_learns_its_own() -> None:
    """A fallback's window is its own provider's."""
    main, spare = Told(300_000), Told(64_000, "spare")
    await learn_windows([block_of(main), block_of(spare)])
    assert (main.context_length, spare.context_length) == (300_000, 64_000)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (CredentialsRefused("401"), "CredentialsRefused"),
        (ModelUnreachable("down"), "ModelUnreachable"),
        (None, "TimeoutError"),
    ],
    ids=["refused", "down", "silent"],
)
async def test_a_provider_that_cannot_be_asked_leaves_the_table(
    failure: ModelError | None, error: str, logs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning for the block, and the start goes on; the other blocks still learn theirs."""
    monkeypatch.setattr("gateway.supervision.credentials.LOOK_UP_S", 0.01)
    keys, spare = (Told(failure), Told(failure)), Told(64_000, "spare")
    await learn_windows([block_of(*keys), block_of(spare)])
    assert [model.context_length for model in keys] == [TABLE_TOKENS] * 2
    assert spare.context_length == 64_000
    assert beside_findings(logs) == [
        {
            "event": "model_not_looked_up",
            "log_level": "warning",
            "provider": "scripted",
            "model": "told",
            "error": error,
        }
    ]


@pytest.mark.parametrize("setting", [None, 50_000])
async def test_a_provider_that_tells_nothing_changes_nothing(
    setting: int | None, logs: list[Any]
) -> None:
    """It knows the model and not its window; so does one that has nothing to tell at all."""
    silent, vague = ScriptedModel([]), Told(0)
    await learn_windows([block_of(silent, setting=setting), block_of(vague, setting=setting)])
    expected = setting or TABLE_TOKENS
    assert (silent.context_length, vague.context_length) == (expected, expected)
    assert beside_findings(logs) == []
