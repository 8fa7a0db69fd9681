"""Settings that are read again while a gateway runs: why, what the answer says, what it changes."""

import asyncio
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typing_extensions import override

from adapters.registry import AccountSettings
from gateway import wiring
from gateway.errors import GatewayNotRunning, StorageUnavailable
from gateway.http import control
from gateway.reload import reloading as module
from gateway.reload.reloading import Source
from gateway.settings.loading import Loaded
from gateway.supervision.credentials import Configured, Reloaded, Rotation, SettingsReloaded
from tests.e2e.web_chat import WebChat
from tests.support.gateway import Running, running, serving
from tests.support.model_server import Reply
from tests.support.openai_server import OpenAIServer
from tests.support.process import ParleyProcess, Record
from tests.support.scripted_model import ScriptedModel


async def hung_up(chat: Running) -> dict[str, Any]:
    """Send this process SIGHUP once it listens, and return what was logged."""
    waiting = asyncio.create_task(chat.gateway.reloading.run())
    try:
        while signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGHUP)
        return await chat.logged("secrets_reloaded")
    finally:
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_a_signal_reloads(tmp_path: Path) -> None:
    """SIGHUP does what the command does, and tells it in the log."""
    # Below `nohup` it is ignored.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        async with running(tmp_path) as chat:
            line = await hung_up(chat)
        assert (line["level"], line["renewed"], line["restart_needed"]) == ("info", [], [])
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_what_nobody_has_thought_of_ends_no_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the log with its trace, whoever asks is told of it, and the next one is heard."""

    async def broken(_: Rotation) -> None:
        raise RuntimeError("of a library")

    monkeypatch.setattr(Rotation, "reload", broken)
    async with serving(tmp_path) as gateway:
        found = await control.ask_settings(tmp_path, "reload")
        assert found["problems"] == ["the reload failed: of a library"]
        reloading = gateway.chat.gateway.reloading
        task = asyncio.create_task(reloading.run())
        reloading.notify()
        await gateway.chat.logged("reload_failed", 2)
        monkeypatch.undo()
        reloading.notify()
        await gateway.chat.logged("secrets_reloaded")
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})


async def test_the_command_reloads_secrets_through_the_socket(tmp_path: Path) -> None:
    """It prints what became of the secrets; where no gateway runs it says so."""
    async with serving(tmp_path):
        found = await control.ask_settings(tmp_path, "secrets")
    assert found.pop("references") == 0
    assert found == {"renewed": [], "restart": [], "refused": [], "unreadable": []}
    with pytest.raises(GatewayNotRunning, match="No gateway runs in"):
        await control.ask_settings(tmp_path, "reload")


async def reloaded(parley: ParleyProcess, count: int = 1) -> Record:
    """Return what the gateway has logged of a reload."""
    return await parley.event("settings_reloaded", count=count)


@pytest.mark.thorough
async def test_a_file_that_was_replaced_is_read(tmp_path: Path) -> None:
    """By a rename, as editors do; then written into, as others do. Each change is told once."""
    async with ParleyProcess(tmp_path, {"queue": {"debounce_ms": 0}}) as parley:
        parley.configure({"queue": {"debounce_ms": 1}, "backup": {"keep": 5}})
        line = await reloaded(parley)
        assert (line["live"], line["restart_needed"]) == (["queue.debounce_ms"], ["backup.keep"])
        with (tmp_path / "parley.yaml").open("r+") as file:
            # In one piece, over all that stood there: at no moment is there half of it.
            text = yaml.safe_dump(parley.storage | {"agent": {"ephemeral": "Hurry."}})
            file.write(text.ljust(500, "\n"))
        line = await reloaded(parley, 2)
        assert line["next_turn"] == ["agent.ephemeral"]
        assert line["live"] == ["queue.debounce_ms"]


@pytest.mark.thorough
async def test_a_turn_takes_the_model_of_the_file(tmp_path: Path) -> None:
    """The signal has it be read: the next answer comes from another server, with another key."""
    fine = Reply(text="Fine.")
    async with (
        OpenAIServer("sk-first-8Rk2Vb7Tq", fine) as first,
        OpenAIServer("sk-next-3Hm9Xc4W", fine) as last,
    ):
        model = {"base_url": first.url, "name": "one", "api_key": "sk-first-8Rk2Vb7Tq"}
        async with ParleyProcess(tmp_path, {"model": model}) as parley:
            chat = WebChat(parley)
            await chat.ask("To whom do I speak?")
            assert (len(first.requests), len(last.requests)) == (1, 0)
            other = {"base_url": last.url, "name": "two", "api_key": "sk-next-3Hm9Xc4W"}
            parley.configure({"model": other})
            parley.signal(signal.SIGHUP)
            line = await reloaded(parley)
            assert line["next_turn"] == ["model.name", "model.base_url", "model.api_key"]
            await chat.ask("And now?")
            assert (len(first.requests), len(last.requests)) == (1, 1)
            assert "sk-next-3Hm9Xc4W" not in str(parley.records)


@pytest.mark.thorough
async def test_a_turn_goes_by_one_state_of_the_settings(tmp_path: Path) -> None:
    """Its second call goes to the model of its first one, though the settings name another."""
    fine = Reply(text="Fine.")
    async with OpenAIServer(default=fine) as first, OpenAIServer(default=fine) as last:
        first.script(
            Reply(
                text="Let me look at the clock.",
                calls=(("current_time", {}),),
                piece=2,
                pause_s=0.3,
            )
        )
        model = {"base_url": first.url, "name": "one"}
        async with ParleyProcess(tmp_path, {"model": model}) as parley:
            chat = WebChat(parley)
            seq = await chat.say("What time is it?")
            await chat.until(lambda: chat.preview)
            other = {"base_url": last.url, "name": "two"}
            parley.configure({"model": other})
            await reloaded(parley)
            await chat.until(lambda: seq in chat.answered())
            assert [each.body["model"] for each in first.requests] == ["one", "one"]
            assert last.requests == []
            await chat.ask("And now?")
            assert [each.body["model"] for each in last.requests] == ["two"]


@pytest.mark.thorough
async def test_a_wrong_file_changes_nothing_and_is_told_once(tmp_path: Path) -> None:
    """In the log, with the line; to who asks; and not again until the file is another one."""
    async with ParleyProcess(tmp_path, {"queue": {"debounce_ms": 0}}) as parley:
        right = (tmp_path / "parley.yaml").read_text()
        parley.configure(f"{right}queue:\n  mode: [1\n")
        line = await parley.event("settings_refused")
        assert "not valid YAML" in line["problems"][0]
        parley.configure(f"# mine\n{right}agent:\n  max_iterations: -3\n")
        line = await parley.event("settings_refused", count=2)
        number = len(right.splitlines()) + 3
        problem = f"line {number}: agent.max_iterations: -3 in parley.yaml is not allowed"
        assert line["problems"][0].startswith(problem)
        asked = await parley.run("config", "reload")
        assert (asked.code, asked.stdout) == (1, "")
        assert asked.stderr.splitlines()[0] == "nothing was changed:"
        assert asked.stderr.splitlines()[1].startswith(problem)
        checked = await parley.run("config", "check")
        assert (checked.code, checked.stderr.startswith(problem)) == (1, True)
        assert await WebChat(parley).ask("Are you there?")
        parley.configure(f"{right}model: &a {{name: *a}}\n")
        line = await parley.event("settings_refused", count=4)
        assert "not valid YAML" in line["problems"][0]
        parley.configure(right)
        line = await reloaded(parley)
        assert line["live"] + line["next_turn"] + line["restart_needed"] == []
        assert len(parley.named("settings_refused")) == 4


@pytest.mark.thorough
async def test_settings_that_only_fail_when_parts_are_built_change_nothing(tmp_path: Path) -> None:
    """A tool that there is not, beside a key that would be live."""
    async with ParleyProcess(tmp_path, {"queue": {"debounce_ms": 0}}) as parley:
        wrong = {"tools": {"enabled": ["todo", "nonsense"]}, "queue": {"debounce_ms": 3}}
        parley.configure(wrong)
        line = await parley.event("settings_refused")
        assert "tools.enabled: unknown tools: nonsense" in line["problems"][0]
        shown = await parley.run("config", "show", "--running", "--json")
        assert json.loads(shown.stdout)["queue.debounce_ms"]["value"] == "0"


@pytest.mark.thorough
async def test_a_setting_is_written_and_gone_by(tmp_path: Path) -> None:
    """`config set` keeps the comments, says what counts when, and is on record."""
    async with ParleyProcess(tmp_path, {"queue": {"debounce_ms": 0}}) as parley:
        file = tmp_path / "parley.yaml"
        parley.configure(f"# why\n{file.read_text()}")
        await reloaded(parley)
        done = await parley.run("config", "set", "queue.debounce_ms", "7")
        assert done.stdout.splitlines()[1:] == ["in effect now: queue.debounce_ms"]
        done = await parley.run("config", "set", "agent.max_iterations", "9")
        assert "in effect with the next turn: agent.max_iterations" in done.stdout
        done = await parley.run("config", "set", "web.max_connections", "99")
        assert "needs a restart: web.max_connections" in done.stdout
        assert file.read_text().startswith("# why\n")
        told = await parley.run("config", "show", "--diff")
        assert told.stdout == "web.max_connections: 1000 → 99 (restart)\n"
        done = await parley.run("config", "set", "queue.mode", "never")
        assert done.code == 1
        assert done.stderr.startswith("nothing was changed: ")
        assert "never" not in file.read_text()
        rows = parley.rows("SELECT said FROM audit_row WHERE kind = 'settings_changed' ORDER BY id")
        subjects = [json.loads(said)[2] for (said,) in rows]
        assert subjects[-2:] == ["queue.debounce_ms", "agent.max_iterations"]


@pytest.mark.thorough
async def test_who_asks_late_is_told_what_was_seen(tmp_path: Path) -> None:
    """The gateway may see a file before the command asks that wrote it; once it is told."""
    async with ParleyProcess(tmp_path, {"queue": {"debounce_ms": 0}}) as parley:
        parley.configure({"queue": {"debounce_ms": 1}})
        await reloaded(parley)
        done = [await parley.run("config", "reload") for _ in range(2)]
        assert [each.stdout for each in done] == [
            "in effect now: queue.debounce_ms\n",
            "nothing has changed\n",
        ]


@pytest.mark.thorough
async def test_a_kill_between_the_file_and_the_reload_loses_nothing(tmp_path: Path) -> None:
    """The start reads what was written."""
    async with ParleyProcess(tmp_path, {"queue": {"debounce_ms": 0}}) as parley:
        await parley.kill9()
        done = await parley.run("config", "set", "queue.debounce_ms", "7")
        assert done.stdout.splitlines()[1:] == ["no gateway runs here; the next start uses it"]
        parley.settings = yaml.safe_load((tmp_path / "parley.yaml").read_text())
        await parley.restart()
        shown = await parley.run("config", "show", "--running", "--json")
        assert json.loads(shown.stdout)["queue.debounce_ms"]["value"] == "7"


def with_source(chat: Running, file: Path) -> None:
    """Have the gateway read this file; it says how the agent is told to hurry."""
    reloading, settings = chat.gateway.reloading, chat.gateway.settings

    def read(_: object) -> Loaded:
        agent = settings.agent.model_copy(update={"ephemeral": file.read_text()})
        return Loaded(settings.model_copy(update={"agent": agent}), {}, {}, (), file)

    file.write_text("")
    loaded = Loaded(settings, {}, {}, (), file)
    reloading._origin.source = Source(loaded, read)
    reloading._origin.line = [Configured(settings.model, chat.agent.models)]


async def test_who_asks_late_is_told_of_both_reloads(tmp_path: Path) -> None:
    """What was seen and what is done now; of a mistake that was seen and is put right nothing."""
    seen = SettingsReloaded(live=("queue.debounce_ms",), secrets=Reloaded(refused=("a.key",)))
    async with running(tmp_path) as chat:
        reloading = chat.gateway.reloading
        reloading._untold = time.monotonic(), seen
        done = await reloading.reload()
        assert (done.live, done.secrets.refused) == (("queue.debounce_ms",), ("a.key",))
        reloading._untold = time.monotonic(), SettingsReloaded(problems=("line 3: no number",))
        assert (await reloading.reload()).problems == ()


@pytest.mark.parametrize("failure", [StorageUnavailable("gone"), RuntimeError("a plugin's")])
async def test_a_reload_that_fails_ends_no_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """The database's trouble is over by the next try; another one waits for another file."""
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(module, "AGAIN_AFTER_S", 0.01)
    build, failures = wiring.build_mind, [failure]

    def built(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return build(*given)

    file = tmp_path / "parley.yaml"
    async with running(tmp_path) as chat:
        monkeypatch.setattr(wiring, "build_mind", built)
        with_source(chat, file)
        waiting = asyncio.create_task(chat.gateway.reloading.run())
        try:
            file.write_text("Hurry.")
            line = await chat.logged("reload_failed")
            assert (line["level"], line["is_taken"]) == ("error", False)
            if not isinstance(failure, StorageUnavailable):
                file.write_text("Hurry up.")
            line = await chat.logged("settings_reloaded")
            assert chat.gateway.settings.agent.ephemeral == file.read_text()
        finally:
            waiting.cancel()
            await asyncio.wait({waiting})
        assert waiting.cancelled()


async def test_what_fails_behind_the_settings_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are gone by then: who asked is told both."""
    async with running(tmp_path) as chat:
        reloading, file = chat.gateway.reloading, tmp_path / "parley.yaml"
        with_source(chat, file)
        file.write_text("Hurry.")

        async def broken(_: object) -> Reloaded:
            raise RuntimeError("no secrets")

        monkeypatch.setattr(Rotation, "reload", broken)
        done = await reloading.reload()
        assert done.problems == ()
        assert done.warnings == ("the reload failed: no secrets; the settings are gone by",)
        assert chat.gateway.settings.agent.ephemeral == "Hurry."
        assert chat.events("reload_failed")[0]["is_taken"]
        done = await reloading.reload()
        assert done.problems == ("the reload failed: no secrets",)


async def test_a_model_that_cannot_be_closed_keeps_no_other_from_it(tmp_path: Path) -> None:
    """At the end of the gateway, which may have gone by it before a reload."""

    class Stuck(ScriptedModel):
        """Cannot be closed."""

        @override
        async def close(self) -> None:
            raise RuntimeError("its pool is gone")

    closed = []

    class Fine(ScriptedModel):
        """Says that it was closed."""

        @override
        async def close(self) -> None:
            closed.append(self.name)

    async with running(tmp_path) as chat:
        reloading = chat.gateway.reloading
        for name in ("one", "two"):
            reloading._former += [Stuck([], name=name), Fine([], name=name)]
        await reloading.close()
        assert closed == ["one", "two"]
        labels = [each["model"] for each in chat.events("model_not_closed")]
        assert labels == ["one", "two"]


async def test_models_that_are_not_gone_by_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is down new ones are made every few seconds."""
    closed = []

    class Fresh(ScriptedModel):
        """Says that it was closed."""

        @override
        async def close(self) -> None:
            closed.append(self.name)

    def broken(*_: object) -> None:
        raise StorageUnavailable("gone")

    async with running(tmp_path) as chat:
        monkeypatch.setattr(wiring, "build_mind", broken)
        models = (*chat.agent.models, Fresh([], name="fresh"))
        line = [Configured(chat.gateway.settings.model, models)]
        with pytest.raises(StorageUnavailable):
            await chat.gateway.reloading._go_by(chat.gateway.settings, chat.agent, line, [])
        assert closed == ["fresh"]


async def test_an_account_goes_on_where_no_other_adapter_can_be_made(tmp_path: Path) -> None:
    """Whatever an SDK raises; who asked is told."""

    def broken(platform: str, block: object) -> Any:
        raise RuntimeError("no event loop")

    async with running(tmp_path) as chat:
        reloading, block = chat.gateway.reloading, AccountSettings()
        reloading.parts = replace(reloading.parts, make=broken)
        [found] = await reloading._restart("telegram", block)
        assert (found.outcome, found.text) == ("refused", "no event loop")
        assert chat.events("adapter_not_restarted")[0]["reason"] == "no event loop"
        assert await chat.ask("hello") == "re: hello"


@pytest.mark.thorough
async def test_the_level_of_the_log_changes(tmp_path: Path) -> None:
    """From the reload on, in the same process."""
    async with ParleyProcess(tmp_path, {}) as parley:
        done = await parley.run("config", "set", "logging.level", "warning")
        assert "in effect now: logging.level" in done.stdout
        await WebChat(parley).ask("Are you there?")
        await parley.run("config", "set", "logging.level", "info")
        await parley.event("settings_reloaded")
        assert not parley.named("turn_finished")
