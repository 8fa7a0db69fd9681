"""Runs a gateway from settings to shutdown; the only file that connects concrete classes.

Start reading at `run`; its caller holds the home (`own_home` in gateway/supervision/home.py).
`assembled` connects the objects, `parts_of` lists the concurrent parts, `serving` runs and stops
them in order. gateway/wiring.py builds the configured objects.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import structlog

from adapters.base import Adapter
from adapters.registry import BUILT_IN
from adapters.web.guard import Guard
from agent.models.base import ChatModel
from agent.plugins.loading import load_plugins
from agent.processes import confinement, descriptors
from agent.tokens import load_beside
from agent.turn.request import Agent
from gateway import wiring
from gateway.access.oidc import identity_provider
from gateway.access.policy import Access, Owners
from gateway.access.web_door import WebDoor
from gateway.agent_ports import questions, search
from gateway.agent_ports.budgets import Budgets, refuse_unpriced
from gateway.agent_ports.files import Attachments
from gateway.backup import pruning
from gateway.backup.backups import Backups
from gateway.commands.status import crowding_text
from gateway.console.register import Inside
from gateway.console.site import Console
from gateway.context.memory import Recall
from gateway.context.parts import Beside, Mind, Shared, TurnParts
from gateway.context.summaries import Preparations
from gateway.errors import StorageError
from gateway.findings import watch as alerts_watch
from gateway.findings import webhook
from gateway.findings.finding import Evidence
from gateway.findings.report import Examination
from gateway.http import control
from gateway.http.connections import Connections
from gateway.http.server import ChatHistory, Health, HttpServer, Port
from gateway.metrics.instruments import Instruments
from gateway.pipeline.delivery import Burials, Delivery
from gateway.pipeline.intake import GatewayIntake
from gateway.pipeline.notices import ReactionQueue
from gateway.pipeline.worker import Worker
from gateway.reload import operator
from gateway.reload.reloading import AgentOrigin, LiveParts, Reloading, Source, turn_kit_of
from gateway.replicas.other_replicas import OtherReplicas, SharedChats
from gateway.replicas.replica import AccountLeases, Replica
from gateway.settings.tree import Settings
from gateway.signals import Stops, Wakeups
from gateway.storage.database import Database, location_of
from gateway.storage.migrations import open_locked
from gateway.storage.people import mcp
from gateway.storage.people.web_users import ChatLinks
from gateway.storage.queue.blame import Death
from gateway.storage.reports import history
from gateway.supervision import credentials, home, silence
from gateway.supervision.accounts import ReplaceableAdapter, Supervised, routes_of, supervised_of
from gateway.supervision.crash_journal import CrashJournal
from gateway.supervision.credentials import Checked, Rotation
from gateway.supervision.service_manager import Pulse, service_manager
from gateway.supervision.vitals import Vitals

log = structlog.get_logger()

DELIVER_WITHIN_S = 5.0
"""Seconds that a stop waits for committed answers to be sent; the next start sends the rest."""


@dataclass(frozen=True, slots=True)
class Platforms:
    """The connected accounts and their supervision; `others` is None on SQLite."""

    adapters: Mapping[silence.Account, Adapter]
    supervised: Sequence[Supervised]
    examination: Examination
    reactions: ReactionQueue
    others: OtherReplicas | None = None
    alerts: alerts_watch.AlertWatch | None = None


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway's parts, in the order of a message's path."""

    reloading: Reloading
    database: Database
    platforms: Platforms
    intake: GatewayIntake
    worker: Worker
    delivery: Delivery
    beside: Beside
    server: HttpServer

    @property
    def settings(self) -> Settings:
        """The settings in use; a reload replaces them."""
        return self.reloading.settings

    @property
    def replica(self) -> Replica:
        """This process among all on the database."""
        return self.worker.replica


OnReady = Callable[[int, Sequence[Checked]], None]
"""Receives the web chat's port and the results of checking keys and tokens."""


async def run(
    settings: Settings,
    on_start: Callable[[Gateway], Awaitable[OnReady]],
    journal: CrashJournal,
    source: Source | None = None,
    whole: Settings | None = None,
) -> None:
    """Run a gateway until SIGTERM or SIGINT; a second signal does not wait for turns.

    Args:
        on_start: Called before any message is received, to write what the first one needs. Returns
            a function to call once messages are accepted.
        source: The source for reloads; None if the settings never change.
        whole: The settings for the audit log, if `settings` is incomplete.

    Raises:
        GatewayError: It cannot start; nothing was changed.
    """
    _prepare_process()
    stop, force = _stops_at_signals(journal)
    line, writers = wiring.build_line(settings), wiring.build_writers(settings)
    refuse_unpriced(settings.budget, wiring.models_of(line))
    async with AsyncExitStack() as held:
        await held.enter_async_context(_closed_if_it_fails(wiring.models_of([*line, *writers])))
        checked, others, _, _ = await asyncio.gather(
            credentials.learn_windows(line),
            credentials.learn_windows(writers),
            # Concurrently with the providers' responses.
            asyncio.to_thread(wiring.load_adapters, settings),
            load_beside(wiring.models_of(line)[0].name),
        )
        home.restore_modes(settings)
        plugins = load_plugins(settings.plugins, settings.home)
        journal.tell_of_the_one_before()
        opened = open_locked(location_of(settings), settings.home)
        database = await held.enter_async_context(opened)
        record = await database.write(mcp.at_start, (whole or settings).tools.mcp)
        foreign = await held.enter_async_context(wiring.open_tools(settings, record))
        agent = wiring.build_agent(settings, line, plugins, foreign)
        credentials.note_keys(agent.recovery.rests, checked)
        origin = AgentOrigin(plugins, foreign, line, writers, source)
        accounts = wiring.build_accounts(settings)
        gateway = await held.enter_async_context(
            assembled(settings, database, agent, accounts, origin, death=journal.owed)
        )
        # The interrupted turns have now been charged with the last death.
        journal.settled()
        await gateway.reloading.note(whole or settings)
        if origin.held:
            await gateway.intake.show_tools(origin.held)
        on_ready = await on_start(gateway)
        running = serving(gateway, stop, force, journal)
        port, found = await held.enter_async_context(running)
        on_ready(port, [*checked, *others, *found])


@asynccontextmanager
async def _closed_if_it_fails(models: Sequence[ChatModel]) -> AsyncIterator[None]:
    """Close the models if the body fails, before the parts exist that would close them."""
    try:
        yield
    except BaseException:
        for model in models:
            await model.close()
        raise


def _prepare_process() -> None:
    """Protect the process memory and reserve file descriptors."""
    # Before any program starts: environment and memory contain tokens and users' text.
    confinement.close_memory()
    log.info("descriptors_reserved", limit=descriptors.raise_limit(), kept=descriptors.RESERVED)
    descriptors.RESERVE.keep(descriptors.RESERVED)


def _stops_at_signals(journal: CrashJournal) -> tuple[asyncio.Event, asyncio.Event]:
    """Return the events set by the first and the second signal."""
    stop, force = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        journal.asked_to_stop()
        (force if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop, force


Run = Callable[[], Coroutine[Any, Any, Any]]
"""Runs a part until it is cancelled."""


def _repeated(name: str, check: Run, every_s: float, *, at_once: bool = False) -> Run:
    """Repeat a check until cancelled, logging exceptions.

    Args:
        at_once: Whether to run the first check immediately.
    """

    async def run() -> NoReturn:
        if not at_once:
            await asyncio.sleep(every_s)
        while True:
            try:
                await check()
            except StorageError as exc:
                log.warning("work_failed", work=name, error=str(exc))
            except Exception as exc:
                # Messages must still be answered.
                log.exception("work_failed", work=name, error=repr(exc))
            await asyncio.sleep(every_s)

    return run


def parts_of(
    gateway: Gateway, journal: CrashJournal | None = None
) -> tuple[dict[str, Run], dict[str, Run]]:
    """Return the concurrent parts by name.

    Args:
        journal: The crash journal of a standalone process, which also reloads and notifies its
            service manager.

    Returns:
        The parts that run until the stop, and those that run until the last answers are delivered.
    """
    platforms, beside, replica = gateway.platforms, gateway.beside, gateway.replica
    examination, alerts = platforms.examination, platforms.alerts
    checks: list[tuple[str, Run, float]] = [
        ("inquiries", beside.inquiries.sweep, questions.SWEEP_S),
        ("search index", beside.indexer.feed_all, search.FEED_EVERY_S),
        ("watch", examination.vitals.watch.look, silence.LOOK_EVERY_S),
        ("modes", partial(home.keep_modes, lambda: gateway.settings), home.LOOK_EVERY_S),
    ]
    if alerts is not None:
        checks.append(("alerts", alerts.look, alerts_watch.LOOK_EVERY_S))
        if alerts.webhook is not None:
            checks.append(("webhook of alerts", alerts.webhook.post_due, webhook.LOOK_EVERY_S))
    prune = gateway.reloading.parts.pruner.prune
    to_the_stop: dict[str, Run] = {
        **{each.name: each.keep for each in platforms.supervised},
        **{name: _repeated(name, check, every_s) for name, check, every_s in checks},
        "files": beside.files.run,
        "prepare summaries": beside.preparations.run,
        "prune": _repeated("prune", prune, pruning.PRUNE_EVERY_S, at_once=True),
        "backups": Backups(gateway.database, replica, gateway.settings).run,
    }
    to_the_end: dict[str, Run] = {
        "replica": replica.run,
        "delivery": gateway.delivery.run,
        "reactions": platforms.reactions.run,
    }
    if platforms.others is not None:
        to_the_end["other replicas"] = platforms.others.run
    if (meanings := beside.indexer.meanings) is not None:
        make, name = partial(meanings.make_all_if_oldest, lambda: replica.id), "embeddings"
        to_the_stop[name] = _repeated(name, make, search.EMBED_EVERY_S, at_once=True)
    if (recall := beside.recall) is not None:
        to_the_end["plugins"] = recall.run
        if recall.reader is not None:
            to_the_stop["memory"] = recall.reader.run
    if journal is not None:
        to_the_end |= {"crash journal": journal.run, "reload": gateway.reloading.run}
        if (manager := service_manager()) is not None:
            pulse = Pulse(manager, gateway.database, replica, gateway.worker.still_s)
            to_the_end["service manager"] = pulse.run
    return to_the_stop, to_the_end


@asynccontextmanager
async def serving(
    gateway: Gateway, stop: asyncio.Event, force: asyncio.Event, journal: CrashJournal | None = None
) -> AsyncIterator[tuple[int, Sequence[Checked]]]:
    """Run all parts; the body starts when messages are accepted, and its end waits for `stop`.

    Then stop the intake, let turns finish unless `force` is set, and deliver committed answers.

    Args:
        journal: See `parts_of`.

    Yields:
        The HTTP server's port, and the state of the platforms' tokens.
    """
    supervised = gateway.platforms.supervised
    port = await gateway.server.start()
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(gateway.worker.run(), name="worker")
        to_the_stop, to_the_end = (
            [tasks.create_task(run(), name=name) for name, run in parts.items()]
            for parts in parts_of(gateway, journal)
        )
        found = await credentials.of_platforms(supervised, stop, gateway.settings.platforms.on())
        log.info("gateway_ready", port=port, adapters=[each.name for each in supervised])
        yield port, found
        await stop.wait()
        grace_s = gateway.settings.queue.grace_s
        log.info("gateway_stopping", grace_s=grace_s)
        for task in to_the_stop:
            task.cancel()
        forced = tasks.create_task(force.wait(), name="second signal")
        gateway.worker.stop()
        await _either(working, forced, grace_s)
        working.cancel()
        await asyncio.wait({working})
        idle = [gateway.delivery.wait_idle()]
        if (recall := gateway.beside.recall) is not None:
            idle.append(recall.wait_idle())
        delivered = asyncio.gather(*idle)
        await _either(delivered, forced, DELIVER_WITHIN_S)
        if not delivered.done():
            log.warning("delivery_unfinished", after_s=DELIVER_WITHIN_S)
        delivered.cancel()
        for task in (forced, *to_the_end):
            task.cancel()
    await gateway.replica.leave()
    log.info("gateway_stopped")


async def _either(one: asyncio.Future[Any], other: asyncio.Future[Any], within_s: float) -> None:
    await asyncio.wait({one, other}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)


@asynccontextmanager
async def assembled(
    settings: Settings,
    database: Database,
    agent: Agent,
    accounts: wiring.Accounts,
    origin: AgentOrigin | None = None,
    *,
    death: Death | None = None,
) -> AsyncIterator[Gateway]:
    """Connect the parts, and make an earlier process's unfinished work ready.

    Each part is complete once built, so none can be called too early.

    Args:
        origin: Contains the loaded plugins; None without plugins and with fixed settings.
        death: How that process ended; None if unknown.
    """
    origin = origin or AgentOrigin()
    access, wakeups, traffic = Access(settings.access, settings.web), Wakeups(), silence.Traffic()
    mind = wiring.build_mind(settings, agent, database, origin.plugins, origin.writers)
    receiving = AccountLeases(is_alone=database.server is None)
    rules = wiring.build_rules(settings, access, mind)
    intake = GatewayIntake(database, rules, accounts.renderers, wakeups, traffic, receiving)
    links = ChatLinks(settings.web.token)
    door = WebDoor(database, access, links.token, provider=identity_provider(access.web))
    chats = ChatHistory(database, intake.facts, links)
    adapters: dict[silence.Account, Adapter] = {
        (each.platform, each.account): each
        if each.platform == BUILT_IN
        else ReplaceableAdapter(each)
        for each in accounts.connect(intake, chats, door)
    }
    await _tell_at_the_start(database, adapters, intake)

    owners, plugins = Owners(access, accounts.renderers), origin.plugins
    budgets = Budgets(database, settings.budget, settings.sessions.timezone)
    reader = wiring.build_memory_reader(settings, mind, budgets, owners, wakeups)
    is_heard = reader or plugins.providers or plugins.having("turn_finished")
    beside = Beside(
        Preparations(database, mind.agent, mind.context, budgets),
        Attachments(database, adapters, settings.attachments, wakeups),
        questions.Inquiries(database, owners, settings.tools.approval_valid_s, wakeups),
        search.Indexer(database, wiring.build_embedder(settings, database)),
        Recall(database, plugins, access, reader) if is_heard else None,
    )
    shared = Shared(database, owners, wakeups, Stops(), budgets, adapters, plugins, beside)
    # After everything that can fail: a failed start must not charge that death.
    place = f"{socket.gethostname()} {settings.home}"
    replica = await wiring.registered(database, place, death or Death(), receiving, accounts.share)
    worker = Worker(database, replica, turn_kit_of(TurnParts(settings, mind, shared)), [*adapters])
    delivery = Delivery(database, replica, adapters, traffic, Burials(owners), links)
    reactions = ReactionQueue(adapters)
    _listen(shared, worker, delivery, reactions, mind)

    parts = LiveParts(
        shared,
        intake,
        worker,
        pruning.Pruner(database, settings.retention, settings.storage.raw_days),
        Rotation(settings, mind.models, mind.agent.recovery.rests, accounts.make is not None),
        supervised_of(adapters.values(), receiving),
        partial(accounts.make, intake, chats, door) if accounts.make else None,
    )
    reloading = Reloading(settings, mind, parts, origin)
    watch = silence.Watch(database, adapters, traffic, replica)
    platforms = _platforms(reloading, accounts, origin, watch, reactions)
    instruments = Instruments(reloading, watch)
    server = _server(reloading, platforms, instruments, door)
    async with AsyncExitStack() as closing:
        closes = (replica.close, reloading.close, server.stop)
        # In reverse order: the adapters first.
        for close in (*closes, *(each.close for each in adapters.values())):
            closing.push_async_callback(close)
        await closing.enter_async_context(instruments.recording())
        yield Gateway(reloading, database, platforms, intake, worker, delivery, beside, server)


def _platforms(
    reloading: Reloading,
    accounts: wiring.Accounts,
    origin: AgentOrigin,
    watch: silence.Watch,
    reactions: ReactionQueue,
) -> Platforms:
    """Build the supervision of the connected accounts."""
    shared, supervised = reloading.parts.shared, reloading.parts.supervised
    vitals = Vitals(
        supervised,
        watch,
        shared.budgets,
        origin.foreign.states,
        lambda: reloading.mind.standing,
        lambda: reloading.refused,
    )

    def evidence() -> Evidence:
        return Evidence(
            reloading.settings.home,
            reloading.loaded,
            line=origin.line,
            left_out=shared.plugins.left_out(),
            crowding=crowding_text(reloading.parts.intake.facts(None)) or "",
        )

    examination = Examination(vitals, evidence)
    alerts = wiring.build_alerts(
        lambda: reloading.settings, examination, shared.wakeups, shared.owners
    )
    others = _others(reloading, accounts)
    return Platforms(shared.adapters, supervised, examination, reactions, others, alerts)


def _listen(
    shared: Shared, worker: Worker, delivery: Delivery, reactions: ReactionQueue, mind: Mind
) -> None:
    wakeups = shared.wakeups
    wakeups.work.listen(worker.notify)
    wakeups.ready.listen(worker.wake)
    wakeups.stop.listen(shared.stops.stop)
    wakeups.files.listen(shared.beside.files.notify)
    wakeups.outbox.listen(delivery.notify)
    wakeups.reaction.listen(reactions.show)
    wakeups.forgotten.listen(mind.context.views.clear)
    worker.replica.on_lost(worker.drop)
    worker.replica.on_news(worker.wake)


def _others(reloading: Reloading, accounts: wiring.Accounts) -> OtherReplicas | None:
    """Connect this replica to the others; None on SQLite."""
    shared = reloading.parts.shared
    if shared.database.server is None:
        return None
    replica, chats = reloading.parts.worker.replica, accounts.chats or SharedChats()
    others = OtherReplicas(shared.database, replica, shared.stops, chats)
    others.news["forgotten"].listen(shared.wakeups.forgotten)
    others.news["secrets"].listen(reloading.notify)
    return others


async def _tell_at_the_start(
    database: Database, adapters: Mapping[silence.Account, Adapter], intake: GatewayIntake
) -> None:
    """Notify people approved meanwhile; log accounts with conversations but no settings."""
    await intake.tell_approved()
    for platform, account, count in await database.read(history.accounts):
        if (platform, account) not in adapters:
            log.warning(
                "account_not_configured", platform=platform, account=account, conversations=count
            )


def _server(
    reloading: Reloading, platforms: Platforms, instruments: Instruments, door: WebDoor
) -> HttpServer:
    """Build the server of the public port and of the command line's Unix socket."""
    parts, settings, health = reloading.parts, reloading.settings, Health(platforms.examination)
    shared, intake = parts.shared, parts.intake
    said = operator.Operator(reloading)
    inside = Inside(shared.database, health, intake.facts, intake.money, said, shared.plugins)
    on, adapters = settings.web, shared.adapters.values()
    chats = [each for each in adapters if each.platform == BUILT_IN]
    chat_page = [route for each in chats for route in routes_of(each)]
    webhooks = [route for each in adapters if each not in chats for route in routes_of(each)]
    guard = Guard(door, on)
    page = [*chat_page, *Console(inside, guard).routes()] if on.enabled else []
    apart = None
    if on.webhook_port is not None:
        routes = [*health.routes(None), *webhooks]
        keys = "web.webhook_host, web.webhook_port"
        apart, webhooks = Port(on.webhook_host or on.host, on.webhook_port, routes, keys), []
    # `parley chat` uses the web chat through the socket even if the page is off.
    private = [] if on.enabled else chat_page
    private = [*private, health.control_route(), *control.alert_routes(platforms.alerts)]
    return HttpServer(
        Port(on.host, on.port, [*health.routes(guard), *instruments.routes(), *webhooks, *page]),
        settings.home / control.SOCKET,
        private=[*private, *operator.routes(said)],
        webhooks=apart,
        connections=Connections(on.max_connections, on.connections_per_address, on.trusted),
    )
