"""Applies changed settings to a running gateway: on SIGHUP, on request, and when the file changes.

Referenced secrets are read again as well. Invalid settings change nothing. `_take` passes the
settings to each part; keys it ignores are marked `restart` (gateway/settings/tree.py).
"""

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import structlog

from adapters.base import Adapter
from adapters.errors import AdapterError
from adapters.registry import AccountSettings, account_types
from agent.models.base import ChatModel
from agent.network import in_words
from agent.plugins.registry import Plugins
from agent.tools.registry import NO_SERVERS, HeldTool, ServedTools
from agent.turn.request import Agent
from gateway import wiring
from gateway.agent_ports.budgets import refuse_unpriced
from gateway.backup.pruning import Pruner
from gateway.context.parts import Mind, Shared, TurnParts
from gateway.errors import NotFound, SettingsError, StorageError
from gateway.logging.setup import change_logging
from gateway.pipeline.intake import GatewayIntake
from gateway.pipeline.next_turn import TurnStarter, next_turn_of
from gateway.pipeline.turn import TurnRunner
from gateway.pipeline.worker import TurnKit, Worker
from gateway.settings.changes import SettingChange, changes, effective, fingerprinted
from gateway.settings.editing import located
from gateway.settings.loading import Loaded, keep_last_used, secret_values
from gateway.settings.references import Known, references_in
from gateway.settings.tree import Settings, mark_of, named
from gateway.storage import audit_log
from gateway.storage.people import mcp
from gateway.supervision import credentials
from gateway.supervision.accounts import ReplaceableAdapter, Supervised
from gateway.supervision.credentials import (
    Checked,
    Configured,
    Reloaded,
    Rotation,
    SettingsReloaded,
    learn_windows,
)

log = structlog.get_logger()

LOOK_EVERY_S = 2.0
"""Seconds between checks of the file. It is read when two checks agree, since an editor may still
be writing."""
TOLD_WITHIN_S = 30.0
"""Seconds for which the answer to a request includes the last automatic reload's result."""
AGAIN_AFTER_S = 5.0
"""Pause after a reload failed because of the database, in seconds."""
Stamp = tuple[int, int, int]


def stamp_of(file: Path) -> Stamp | None:
    """Return a file's identity and times; None if unreadable."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


@dataclass(slots=True)
class Source:
    """The source of the settings.

    Attributes:
        loaded: The settings read last, in use except for those that need a restart.
        read: Reads everything again; raises SettingsError.
        stamp: The file's stamp at the last read; None forces a read.
    """

    loaded: Loaded
    read: Callable[[Known], Loaded]
    stamp: Stamp | None = field(init=False)

    def __post_init__(self) -> None:
        self.stamp = stamp_of(self.loaded.file)

    @property
    def known(self) -> Known:
        """The known secrets."""
        return dict(references_in(self.loaded.settings))

    def read_again(self) -> Loaded:
        """Read the settings again, except known secrets; blocking."""
        # Before reading, so that a write in between is noticed.
        self.stamp = stamp_of(self.loaded.file)
        return self.read(self.known)


@dataclass(slots=True)
class AgentOrigin:
    """The agent's parts that are not settings, and the settings' source.

    Attributes:
        writers: Summary-only models; None to build them from the settings.
        source: None if the settings never change.
    """

    plugins: Plugins = wiring.NO_PLUGINS
    foreign: ServedTools = NO_SERVERS
    line: Sequence[Configured] = ()
    writers: Sequence[Configured] | None = None
    source: Source | None = None

    @property
    def held(self) -> Sequence[HeldTool]:
        """The servers' tools that wait for an owner's approval."""
        return [each for state in self.foreign.states() for each in state.held]


@dataclass(frozen=True, slots=True)
class LiveParts:
    """The parts of a running gateway that accept new settings.

    Attributes:
        make: Builds a platform's adapter; None if accounts cannot be restarted.
    """

    shared: Shared
    intake: GatewayIntake
    worker: Worker
    pruner: Pruner
    rotation: Rotation
    supervised: Sequence[Supervised]
    make: Callable[[str, AccountSettings], Adapter] | None = None


class Reloading:
    """Applies changed settings to a running gateway.

    Attributes:
        settings: The settings in use.
        mind: The agent built from them.
        refused: The file refused by the last reload, with the reason; None if accepted.
    """

    def __init__(
        self, settings: Settings, mind: Mind, parts: LiveParts, origin: AgentOrigin
    ) -> None:
        self.settings = settings
        self.mind = mind
        self.refused: tuple[str, str] | None = None
        self.parts = parts
        self._origin = origin
        self._one = asyncio.Lock()
        self._asked = asyncio.Event()
        parts.intake.tools.listen(self._asked.set)
        self._rests_until = time.monotonic()
        self._untold = 0.0, SettingsReloaded()
        # Turns and summaries may still use them.
        self._former: list[ChatModel] = []

    @property
    def loaded(self) -> Loaded:
        """The settings in use with their origins."""
        source = self._origin.source
        return source.loaded if source else Loaded(self.settings, {}, {})

    @property
    def file(self) -> Path | None:
        """The settings file, which may not exist; None if the settings never change."""
        return self._origin.source.loaded.file if self._origin.source else None

    def notify(self) -> None:
        """Hint that settings or secrets changed."""
        self._asked.set()

    async def run(self) -> NoReturn:
        """Reload on SIGHUP, on hints and on file changes, until cancelled.

        In the foreground SIGHUP means a closed terminal and ends the gateway.
        """
        is_in_front = sys.stdin is not None and sys.stdin.isatty()
        loop = asyncio.get_running_loop()
        if not is_in_front:
            loop.add_signal_handler(signal.SIGHUP, self._asked.set)
        try:
            while True:
                await self._wait_for_cause()
                self._untold = time.monotonic(), await self._reload_now()
        finally:
            if not is_in_front:
                loop.remove_signal_handler(signal.SIGHUP)

    async def _wait_for_cause(self) -> None:
        """Wait for a hint, or until two checks see the same new file."""
        source, before = self._origin.source, None
        while not self._asked.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._asked.wait()
            if source is None:
                continue
            # A missing file is being replaced by an editor.
            if now := await asyncio.to_thread(stamp_of, source.loaded.file):
                is_due = now == before and now != source.stamp
                if is_due and time.monotonic() >= self._rests_until:
                    return
                before = now
        self._asked.clear()

    async def reload(self) -> SettingsReloaded:
        """Apply the current settings and secrets; a mistake changes nothing.

        The result contains any failure, and the gateway continues. It includes an automatic reload
        that handled the file before its writer asked.
        """
        done = await self._reload_now()
        (at, before), self._untold = self._untold, (0.0, SettingsReloaded())
        if done.problems or time.monotonic() - at > TOLD_WITHIN_S:
            return done
        secrets = _joined(before.secrets, done.secrets, "renewed", "restart", "refused")
        rest = _joined(before, done, "live", "next_turn", "adapters", "warnings")
        return replace(done, secrets=replace(done.secrets, **secrets), **rest)

    async def _reload_now(self) -> SettingsReloaded:
        async with self._one:
            log.info("reload_begun")
            before = self.settings
            try:
                done = await self._reload()
                self.refused = None
            except SettingsError as exc:
                return await self._refused(exc)
            except Exception as exc:  # noqa: BLE001 - of the database, of plugins and engines: it is told
                return self._failed(exc, before)
        log.info(
            "settings_reloaded",
            live=list(done.live),
            next_turn=list(done.next_turn),
            restart_needed=list(done.restart),
            adapters=list(done.adapters),
        )
        return done

    async def _refused(self, exc: SettingsError) -> SettingsReloaded:
        source = self._origin.source
        file = source.loaded.file if source else self.settings.home
        problems = tuple(await asyncio.to_thread(located, exc, file))
        self.refused = str(file), problems[0]
        log.error("settings_refused", file=str(file), problems=list(problems))
        return SettingsReloaded(problems=problems)

    def _failed(self, exc: Exception, before: Settings) -> SettingsReloaded:
        """Report why a reload failed; after a database failure it is retried."""
        source, is_stored = self._origin.source, isinstance(exc, StorageError)
        if is_stored and source is not None:
            source.stamp, self._rests_until = None, time.monotonic() + AGAIN_AFTER_S
        is_taken, trace = self.settings is not before, None if is_stored else exc
        log.error("reload_failed", error=str(exc), is_taken=is_taken, exc_info=trace)
        why = f"the reload failed: {in_words(exc, quoted=True)}"
        if is_taken:
            return SettingsReloaded(warnings=(f"{why}; the settings are gone by",))
        if source is not None and not is_stored:
            self.refused = str(source.loaded.file), why
        return SettingsReloaded(problems=(why,))

    async def _reload(self) -> SettingsReloaded:
        source = self._origin.source
        if source is None:
            return SettingsReloaded(secrets=(await self._renew_secrets())[0])
        before, foreign = source.loaded, await self._offered()
        names = [[each.name for each in tools] for tools in (foreign, self._origin.foreign)]
        has_other_tools = names[0] != names[1]
        try:
            found = await asyncio.to_thread(source.read_again)
        except SettingsError:
            # Owners' verdicts on tools apply even if the file is invalid.
            if has_other_tools:
                await self._make_agent(source, before.settings, foreign)
            raise
        different = changes(before.settings, found.settings)
        new = effective(before.settings, found.settings)
        adapters: list[Checked] = []
        findings: tuple[Checked, ...] = ()
        if new != before.settings or has_other_tools:
            findings = await self._make_agent(source, new, foreign)
        source.loaded = replace(found, settings=new)
        if new != before.settings:
            adapters = await self._restart_changed(before.settings, new)
            try:
                await self.note(new)
            except StorageError as exc:
                log.warning("settings_not_noted", error=str(exc))
        secrets, renewed = await self._renew_secrets()
        adapters += renewed
        return SettingsReloaded(
            live=_keys(different, "live"),
            next_turn=_keys(different, "next-turn"),
            restart=_keys(different, "restart"),
            adapters=tuple(f"{each.subject}: {each.text}" for each in adapters),
            warnings=(
                *found.warnings,
                *(f"{each.subject}: {each.text}" for each in findings if each.is_wrong),
            ),
            secrets=secrets,
        )

    async def _make_agent(
        self, source: Source, new: Settings, foreign: ServedTools
    ) -> tuple[Checked, ...]:
        """Build and use a new agent; return findings. Unchanged models are reused."""
        origin, plain, before = self._origin, source.loaded.settings, self.mind.agent
        line, writers, findings = origin.line, origin.writers, list[Checked]()

        def differ(*names: str) -> bool:
            return any(getattr(plain, name) != getattr(new, name) for name in names)

        if differ("model", "fallbacks", "prompt_caching"):
            line = wiring.build_line(new)
            refuse_unpriced(new.budget, wiring.models_of(line))
            findings += await learn_windows(line)
        if writers is None or differ("model", "auxiliary"):
            writers = wiring.build_writers(new)
            findings += await learn_windows(writers)
        agent = wiring.build_agent(new, line, origin.plugins, foreign)
        # Old secrets stay masked, since old messages may contain them.
        agent.approval.redactor.learn(secret_values(self.settings))
        recovery = replace(agent.recovery, rests=before.recovery.rests)
        await self._go_by(new, replace(agent, recovery=recovery), line, writers)
        origin.foreign, origin.line, origin.writers = foreign, line, writers
        return tuple(findings)

    async def _offered(self) -> ServedTools:
        """Return the servers' approved tools; show owners unseen texts."""
        origin = self._origin
        if not (held := origin.held):
            return origin.foreign
        await self.parts.intake.show_tools(held)
        return origin.foreign.agreeing(await self.parts.shared.database.read(mcp.agreed))

    async def _go_by(
        self, new: Settings, agent: Agent, line: Sequence[Configured], writers: Sequence[Configured]
    ) -> None:
        """Build a new mind and pass it to all parts at once."""
        shared = self.parts.shared
        try:
            mind = wiring.build_mind(
                new, agent, shared.database, shared.plugins, writers, self.mind
            )
        except BaseException:
            # Retried every few seconds while the database is unavailable.
            for model in wiring.models_of([*line, *writers]):
                if model not in self.mind.models:
                    await _close(model)
            raise
        kit = turn_kit_of(TurnParts(new, mind, shared))
        # From here on nothing fails and nothing awaits, so no part sees a partial change.
        self._take(new, mind, kit)
        self._former += [model for model in self.mind.models if model not in mind.models]
        self.settings, self.mind = new, mind

    def _take(self, new: Settings, mind: Mind, kit: TurnKit) -> None:
        parts, shared = self.parts, self.parts.shared
        change_logging(new)
        shared.access.settings = new.access
        shared.budgets.take(new.budget, new.sessions.timezone)
        shared.beside.files.take(new.attachments)
        shared.beside.inquiries.approval_valid_s = new.tools.approval_valid_s
        parts.pruner.take(new.retention, new.storage.raw_days)
        shared.beside.preparations.take(mind.agent, mind.context)
        parts.rotation.take(new, mind.models)
        parts.intake.take(wiring.build_rules(new, shared.access, mind))
        parts.worker.take(kit)

    async def close(self) -> None:
        """Close the models after the last turn."""
        # Close a model that appears twice only once.
        for model in {id(model): model for model in (*self.mind.models, *self._former)}.values():
            await _close(model)

    async def note(self, settings: Settings) -> None:
        """Record the settings in the audit log; after a failure the next start does it."""
        written = fingerprinted(settings)
        keep_last_used(settings)
        await self.parts.shared.database.write(audit_log.note_settings, written)

    async def renew_secrets(self) -> Reloaded:
        """Read all referenced secrets again and use them."""
        async with self._one:
            done, _ = await self._renew_secrets()
        return done

    async def _renew_secrets(self) -> tuple[Reloaded, list[Checked]]:
        """Read the secrets again; restart accounts with new tokens and return their state."""
        done, found = await self.parts.rotation.reload(), list[Checked]()
        of_accounts = [name.split(".") for name in done.renewed if name.startswith("platforms.")]
        for platform, number in dict.fromkeys((each[1], int(each[2])) for each in of_accounts):
            found += await self._restart(
                platform, self.settings.platforms.accounts(platform)[number]
            )
        return done, found

    async def _restart_changed(self, before: Settings, new: Settings) -> list[Checked]:
        """Restart accounts with changed blocks; return their state."""
        found = []
        for platform in account_types():
            pairs = zip(
                before.platforms.accounts(platform), new.platforms.accounts(platform), strict=True
            )
            for old, block in pairs:
                if old != block and block.is_on:
                    found += await self._restart(platform, block)
        return found

    async def restart_account(self, name: str) -> list[str]:
        """Stop and start an account's adapter, with its current token.

        Args:
            name: `telegram` or `telegram:default`, `slack:work`.

        Raises:
            NotFound: The account does not exist or cannot be restarted.
        """
        platform, _, account = name.partition(":")
        blocks = self.settings.platforms.accounts(platform) if platform in account_types() else ()
        block = next((b for b in blocks if b.name == (account or "default") and b.is_on), None)
        if block is None or self.parts.make is None:
            running = ", ".join(each.name for each in self.parts.supervised if each.shard == 0)
            raise NotFound(f"no account {name!r} can be restarted; there are {running}")
        async with self._one:
            _, found = await self._renew_secrets()
            here = f"{platform}:{block.name}"
            if here not in {each.subject.partition("#")[0] for each in found}:
                found += await self._restart(platform, block)
        return [f"{each.subject}: {each.text}" for each in found]

    async def _restart(self, platform: str, block: AccountSettings) -> list[Checked]:
        """Replace an account's adapter; work in progress ends on the old one."""
        here = (platform, block.name)
        adapter = self.parts.shared.adapters.get(here)
        receivers = [each for each in self.parts.supervised if each.adapter is adapter]
        if self.parts.make is None or not isinstance(adapter, ReplaceableAdapter):
            return []
        try:
            fresh = self.parts.make(platform, block)
        except Exception as exc:
            # An operator's mistake needs no traceback; an SDK may raise anything.
            trace = not isinstance(exc, AdapterError)
            log.exception(
                "adapter_not_restarted", adapter=":".join(here), reason=str(exc), exc_info=trace
            )
            return [Checked(":".join(here), "refused", str(exc))]
        await asyncio.gather(*(each.halt() for each in receivers))
        try:
            await adapter.replace(fresh)
        finally:
            for each in receivers:
                each.resume()
        log.info("adapter_restarted", adapter=":".join(here))
        return await credentials.of_platforms(receivers, asyncio.Event())

    async def differences(self) -> list[SettingChange]:
        """Return the differences between the file's settings and those in use."""
        source = self._origin.source
        if source is None:
            return []
        found = await asyncio.to_thread(source.read, source.known)
        return changes(source.loaded.settings, found.settings)

    def running(self) -> dict[str, dict[str, str]]:
        """Return the settings in use: key → JSON, origin and mark, with fingerprints of secrets."""
        settings, origins = self.loaded.settings, self.loaded.origins
        values = fingerprinted(settings)
        return {
            name: {
                "value": values[".".join(map(str, path))],
                "origin": origins.get(name, "default"),
                "mark": mark_of(path),
            }
            for name, (path, _) in named(settings).items()
        }


def turn_kit_of(parts: TurnParts) -> TurnKit:
    """Build the kit that starts and runs turns with these parts."""
    starter = TurnStarter(parts, next_turn_of(parts))
    return TurnKit(starter, TurnRunner(parts), parts.settings.queue)


async def _close(model: ChatModel) -> None:
    """Close a model; log a failure, so that others are closed as well."""
    try:
        await model.close()
    except Exception as exc:
        log.exception("model_not_closed", model=model.label, error=str(exc))


def _joined(before: object, now: object, *names: str) -> dict[str, Any]:
    both = {each: (*getattr(before, each), *getattr(now, each)) for each in names}
    return {name: tuple(dict.fromkeys(found)) for name, found in both.items()}


def _keys(different: Sequence[SettingChange], mark: str) -> tuple[str, ...]:
    return tuple(each.key for each in different if each.mark == mark)
