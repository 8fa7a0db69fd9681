"""What is measured, its labels, and `/metrics`: what it tells, in which format, and whom."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain
from pydantic import SecretStr

from agent import spans
from gateway.errors import StorageUnavailable
from gateway.logging.recent import TAPS
from gateway.metrics.instruments import known_labels, seed_of
from gateway.metrics.series import Vocabulary
from gateway.settings.loading import load_settings
from tests.support.every_series import every_series
from tests.support.gateway import Serving, agent_of, running, serving
from tests.support.scripted_model import ScriptedModel

log = structlog.get_logger()


TOKEN = "0123456789abcdef-metrics"
WITH_TOKEN = {"metrics": {"token": SecretStr(TOKEN)}}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


async def got(gateway: Serving, **headers: str) -> tuple[int, str, str]:
    """Return status, content type and text of the page, asked for over the port."""
    url = f"http://127.0.0.1:{gateway.port}/metrics"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession(headers=named) as http, http.get(url) as response:
        return response.status, response.headers.get("Content-Type", ""), await response.text()


def values(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return each sample by its name and the values of its labels, in the order of the table."""
    known = {each.name: each for each in every_series().values()}
    found = {}
    for family in plain(text):
        for sample in family.samples:
            labels = tuple(sample.labels[label] for label in known[family.name].labels)
            found[sample.name, labels] = sample.value
    return found


@pytest.mark.usefixtures("sqlite_alone")
async def test_a_message_shows_in_the_figures(tmp_path: Path) -> None:
    """From its admission to its delivery; what is a state is read at the scrape."""
    async with serving(tmp_path) as gateway:
        await gateway.chat.ask("hello")
        await gateway.chat.logged("message_sent")
        status, kind, text = await got(gateway)
    found = values(text)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    known = gateway.chat.adapter.platform
    assert found["parley_messages_admitted_total", (known, "default", "queued")] == 1
    assert found["parley_turns_total", (known, "default", "final_text")] == 1
    assert found["parley_messages_sent_total", (known, "false")] == 1
    for name in ("queued_seconds", "admission_seconds", "turn_seconds", "answer_seconds"):
        assert found[f"parley_{name}_count", (known,)] == 1, name
    assert found["parley_hygiene_seconds_count", ()] == 1
    assert found["parley_tool_failures_total", ("other",)] == 0
    assert found["parley_database_up", ()] == 1
    assert found["parley_inbox_depth", ()] == 0
    assert found["parley_replicas", ("alive",)] == 1
    assert found["parley_database_bytes", ()] > 0
    assert "hello" not in text


async def test_on_postgresql_too(tmp_path: Path) -> None:
    """The look at the database is one read that both understand."""
    async with serving(tmp_path) as gateway:
        _, _, text = await got(gateway)
    found = values(text)
    assert found["parley_database_up", ()] == 1
    assert found["parley_database_bytes", ()] > 0


@pytest.mark.usefixtures("sqlite_alone")
async def test_openmetrics_where_it_is_wanted(tmp_path: Path) -> None:
    """Both formats are read by prometheus-client's own strict parsers; all series are known."""
    async with serving(tmp_path) as gateway:
        await gateway.chat.ask("hello")
        _, kind, text = await got(gateway, Accept=OPENMETRICS)
    assert kind.startswith("application/openmetrics-text")
    known = {each.name: each for each in every_series().values()}
    families = list(openmetrics(text))
    assert len(families) >= 60
    for family in families:
        assert family.type == known[family.name].kind
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(known[family.name].labels)


@pytest.mark.usefixtures("sqlite_alone")
@pytest.mark.parametrize(
    "headers",
    [
        {"X_Forwarded_For": "203.0.113.7"},
        {"Forwarded": "for=203.0.113.7"},
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Authorization": "Bearer wrong-wrong-wrong"},
        {"Authorization": "Bearer "},
    ],
)
async def test_who_may_not_read(tmp_path: Path, headers: dict[str, str]) -> None:
    """A proxy, another site's page, a name that leads here, a wrong token: 401, and a line."""
    async with serving(tmp_path, **WITH_TOKEN) as gateway:
        status, _, text = await got(gateway, **headers)
        refused = gateway.chat.events("metrics_refused")
    assert status == 401
    assert "parley_" not in text
    assert [line["address"] for line in refused] == ["127.0.0.1"]


@pytest.mark.usefixtures("sqlite_alone")
@pytest.mark.parametrize(
    "web", [{"trusted_proxies": ["127.0.0.1"]}, {"public_url": "https://chat.example.org/"}]
)
async def test_behind_a_proxy_everybody_shows_the_token(
    tmp_path: Path, web: dict[str, Any]
) -> None:
    """One that adds no header looks like a program of this machine, whoever asks it."""
    async with serving(tmp_path, **WITH_TOKEN, web={"port": 0, **web}) as gateway:
        status, _, text = await got(gateway)
        assert (status, "parley_" in text) == (401, False)
        assert (await got(gateway, Authorization=f"Bearer {TOKEN}"))[0] == 200


@pytest.mark.usefixtures("sqlite_alone")
async def test_with_the_token_from_anywhere(tmp_path: Path) -> None:
    """Also through a proxy; without a configured token no token is right, not even an empty one."""
    shown = {"Authorization": f"Bearer {TOKEN}", "X_Forwarded_For": "203.0.113.7"}
    async with serving(tmp_path, **WITH_TOKEN) as gateway:
        assert (await got(gateway, **shown))[0] == 200
    async with serving(tmp_path / "other") as gateway:
        assert (await got(gateway, **shown))[0] == 401
        assert (await got(gateway, Authorization="Bearer "))[0] == 401


@pytest.mark.usefixtures("sqlite_alone")
async def test_where_there_is_no_page(tmp_path: Path) -> None:
    """`web.enabled: false` leaves it."""
    async with serving(tmp_path, web={"enabled": False, "port": 0}) as gateway:
        assert (await got(gateway))[0] == 200


@pytest.mark.usefixtures("sqlite_alone")
async def test_a_database_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of the process are served all the same: then they are needed."""

    def broken(*_: Any) -> Any:
        raise StorageUnavailable("the disk is gone")

    async with serving(tmp_path) as gateway:
        monkeypatch.setattr("gateway.metrics.instruments.health.counts", broken)
        _, _, text = await got(gateway)
    found = values(text)
    assert found["parley_database_up", ()] == 0
    assert ("parley_inbox_depth", ()) not in found
    assert found["parley_turn_places", ()] > 0


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    """Anybody who reaches the port may try it."""
    with pytest.raises(Exception, match=r"metrics\.token.*16 characters"):
        load_settings(environ={}, overrides={"home": tmp_path, "metrics.token": "short"})


@pytest.mark.usefixtures("sqlite_alone")
async def test_the_age_of_the_newest_backup(tmp_path: Path) -> None:
    """Where Parley makes them, and one is there."""
    to = {"to": tmp_path / "backups"}
    async with serving(tmp_path / "home", backup=to) as gateway:
        await gateway.chat.logged("backup_made")
        _, _, text = await got(gateway)
    found = values(text)
    assert 0 <= found["parley_backup_age_seconds", ()] < 600
    assert found["parley_log_events_total", ("backup_made", "info")] == 1


async def test_nobody_listens_once_it_has_ended(tmp_path: Path) -> None:
    """Taps and recorder are taken back: another gateway of the process counts its own."""
    async with running(tmp_path) as chat:
        assert spans.RECORDER.get() is not None
        await chat.ask("hello")
    assert spans.RECORDER.get() is None
    assert all(not listeners for listeners in TAPS._listeners.values())


@pytest.mark.usefixtures("sqlite_alone")
async def test_two_installations_have_two_seeds(tmp_path: Path) -> None:
    """They may send to one collector; a restart has the same."""
    seeds = []
    for home in ("one", "one", "other"):
        async with running(tmp_path / home) as chat:
            seeds.append(seed_of(chat.gateway.settings))
    first, again, other = seeds
    assert first == again != other


def test_a_password_does_not_change_the_seed(tmp_path: Path) -> None:
    """It is replaced now and then; all replicas have the same, whatever their home."""

    def seed(home: str, url: str) -> bytes:
        overrides = {"home": tmp_path / home, "storage.url": url}
        return seed_of(load_settings(environ={}, overrides=overrides).settings)

    first = seed("a", "postgresql://me:old-password-1@db/parley")
    assert first == seed("b", "postgresql://you:new-password-2@db/parley?sslmode=require")
    assert first != seed("a", "postgresql://me:old-password-1@db/other")


@pytest.mark.usefixtures("sqlite_alone")
async def test_labels_follow_a_reload(tmp_path: Path) -> None:
    """A model that was configured meanwhile has its own name, and no `other`."""
    async with running(tmp_path, agent_of(ScriptedModel(["one"], name="old"))) as chat:
        gateway = chat.gateway
        vocabulary = Vocabulary(partial(known_labels, gateway.reloading))
        assert vocabulary.folded("model", "old") == "old"
        assert vocabulary.folded("model", "new") == "other"
        mind = gateway.reloading.mind
        new = ScriptedModel(["two"], name="new")
        gateway.reloading.mind = replace(mind, models=(new,))
        assert vocabulary.folded("model", "new") == "new"
        assert vocabulary.folded("account", "default") == "default"
        gateway.reloading.mind = mind
