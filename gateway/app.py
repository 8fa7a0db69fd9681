"""Runs a gateway, from the settings to its end: the only file that connects concrete classes.

`run` is the whole story; its caller holds the home (`own_home` in gateway/supervision/home.py).
`assembled` connects the objects, `parts_of` lists what runs side by side, `serving` runs it and
stops it in order. gateway/wiring.py builds what the settings name.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from adapters.base import Adapter
from adapters.registry import BUILT_IN
from adapters.web.guard import Guard
from agent.models.base import ChatModel
from agent.plugins.loading import load_plugins
from agent.processes import confinement, descriptors
from agent.tokens import load_beside
from agent.turn.request import Agent
from gateway.access import web_door
from gateway.access.oidc import identity_provider
from gateway.access.pairing import owner_code
from gateway.access.policy import Access, Owners
from gateway.access.web_door import WebDoor
from gateway.agent_ports import questions, search
from gateway.agent_ports.budgets import Budgets, refuse_unpriced
from gateway.agent_ports.files import Attachments
from gateway.agent_ports.questions import Inquiries
from gateway.agent_ports.search import Indexer
from gateway.backup import pruning
from gateway.backup.backups import Backups
from gateway.backup.pruning import Pruner
from gateway.commands.status import start_warnings
from gateway.console.register import Inside
from gateway.console.site import Console
from gateway.context.memory import Recall
from gateway.context.parts import Beside, Shared, TurnParts
from gateway.context.summaries import Preparations
from gateway.context.window import ContextParts
from gateway.errors import StorageError
from gateway.findings import watch as alerts_watch
from gateway.findings import webhook
from gateway.findings.report import Examination
from gateway.findings.watch import AlertWatch
from gateway.http import control
from gateway.http.connections import Connections
from gateway.http.server import ChatHistory, Health, HttpServer, Port
from gateway.metrics.instruments import Instruments
from gateway.pipeline.delivery import Burials, Delivery
from gateway.pipeline.intake import GatewayIntake
from gateway.pipeline.reactions import ReactionQueue
from gateway.pipeline.worker import Worker
from gateway.reload import operator as operators
from gateway.reload.operator import Operator
from gateway.reload.reloading import AgentOrigin, LiveParts, Reloading, Source, turn_kit_of
from gateway.replicas.other_replicas import OtherReplicas, SharedChats
from gateway.replicas.replica import AccountLeases, Replica
from gateway.settings.loading import Loaded
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
from gateway.supervision.silence import Account, Traffic, Watch
from gateway.supervision.vitals import Vitals
from gateway.wiring import (
    Accounts,
    build_accounts,
    build_agent,
    build_alerts,
    build_embedder,
    build_line,
    build_memory_reader,
    build_mind,
    build_rules,
    build_writers,
    caching_text,
    load_adapters,
    models_of,
    open_tools,
    registered,
)

log = structlog.get_logger()

DELIVER_WITHIN_S = 5.0
"""A stop waits this long for committed answers to be sent; the next start sends the rest."""


@dataclass(frozen=True, slots=True)
class Platforms:
    """The connected accounts and their supervision.

    Attributes:
        others: None on SQLite.
        alerts: None if the settings switch them off.
    """

    adapters: Mapping[Account, Adapter]
    supervised: Sequence[Supervised]
    examination: Examination
    reactions: ReactionQueue
    others: OtherReplicas | None = None
    alerts: AlertWatch | None = None


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway's parts, in the order of the path of a message."""

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
        """This process among all that work on the database."""
        return self.worker.replica


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a start prints once messages are accepted.

    Attributes:
        owner_code: What the first owner sends to the bot; None if there is an owner.
        warnings: What may not work as intended.
        checks: Which keys and tokens are accepted.
        sign_in: The secret of a link that signs the owner in; None if there is no page.
        summaries: Which models write them.
    """

    port: int
    caching: str
    owner_code: str | None = None
    warnings: tuple[str, ...] = ()
    checks: tuple[Checked, ...] = ()
    sign_in: str | None = None
    summaries: str = ""


async def run(
    settings: Settings,
    on_ready: Callable[[Welcome], None],
    journal: CrashJournal,
    source: Source | None = None,
    whole: Settings | None = None,
) -> None:
    """Run a gateway until SIGTERM or SIGINT; a second signal does not wait for turns.

    Args:
        on_ready: Called once messages are accepted.
        source: Where the settings are read again; None: they do not change.
        whole: Settings for the audit log, if `settings` lack some of their parts.

    Raises:
        GatewayError: It cannot start; nothing was changed.
    """
    _prepare_process()
    stop, force = _stops_at_signals(journal)
    line, writers = build_line(settings), build_writers(settings)
    refuse_unpriced(settings.budget, models_of(line))
    async with AsyncExitStack() as held:
        await held.enter_async_context(_closed_if_it_fails(models_of([*line, *writers])))
        checked, others, _, _ = await asyncio.gather(
            credentials.learn_windows(line),
            credentials.learn_windows(writers),
            # While the providers take their time to answer.
            asyncio.to_thread(load_adapters, settings),
            load_beside(models_of(line)[0].name),
        )
        home.restore_modes(settings)
        plugins = load_plugins(settings.plugins, settings.home)
        journal.tell_of_the_one_before()
        opened = open_locked(location_of(settings), settings.home)
        database = await held.enter_async_context(opened)
        record = await database.write(mcp.at_start, (whole or settings).tools.mcp)
        foreign = await held.enter_async_context(open_tools(settings, record))
        agent = build_agent(settings, line, plugins, foreign)
        credentials.note_keys(agent.recovery.rests, checked)
        origin = AgentOrigin(plugins, foreign, line, writers, source)
        accounts = build_accounts(settings)
        gateway = await held.enter_async_context(
            assembled(settings, database, agent, accounts, origin, death=journal.owed)
        )
        # The turns that the last death interrupted are charged with it by now, once.
        journal.settled()
        await gateway.reloading.note(whole or settings)
        welcome = await _welcome(settings, gateway, agent, origin)
        running = serving(gateway, stop, force, journal)
        port, found = await held.enter_async_context(running)
        on_ready(replace(welcome, port=port, checks=(*checked, *others, *found)))


@asynccontextmanager
async def _closed_if_it_fails(models: Sequence[ChatModel]) -> AsyncIterator[None]:
    """Close the models if the body fails: they were asked before the parts that close them."""
    try:
        yield
    except BaseException:
        for model in models:
            await model.close()
        raise


def _prepare_process() -> None:
    """Close the memory to others, and keep descriptors for what must go on."""
    # Before any program is started: its environment and memory hold tokens and what people wrote.
    confinement.close_memory()
    log.info("descriptors_reserved", limit=descriptors.raise_limit(), kept=descriptors.RESERVED)
    descriptors.RESERVE.keep(descriptors.RESERVED)


def _stops_at_signals(journal: CrashJournal) -> tuple[asyncio.Event, asyncio.Event]:
    """Return the events that the first and the second signal set."""
    stop, force = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        journal.asked_to_stop()
        (force if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop, force


async def _welcome(
    settings: Settings, gateway: Gateway, agent: Agent, origin: AgentOrigin
) -> Welcome:
    """Return what a start prints, without the port."""
    database, model = gateway.database, gateway.intake.rules.model(None)
    if origin.held:
        await gateway.intake.show_tools(origin.held)
    code = await owner_code(database, settings, gateway.replica.id)
    link = await database.write(web_door.new_link) if settings.web.enabled else None
    found = await gateway.platforms.examination.report(lambda finding: finding.at_start)
    seen = [row for row in found if row.subject]
    for row in seen:
        log.warning("found_at_start", finding=row.id, text=row.text)
    return Welcome(
        port=0,
        caching=caching_text(agent.models[0], agent.caching),
        owner_code=code,
        warnings=(
            *start_warnings(origin.plugins.missing_guards, model),
            *(row.text for row in seen),
        ),
        sign_in=None if link is None else link.secret,
        summaries=model.summaries,
    )


@dataclass(frozen=True, slots=True)
class GatewayPart:
    """Something that runs side by side with others.

    Attributes:
        work: Runs until it is cancelled; with `every_s` one check, which is repeated.
        every_s: Seconds between two checks; an exception is logged, and the next check follows.
        at_once: Whether the first check does not wait.
        to_the_end: Whether it runs until the last answers are delivered; else until the stop.
    """

    name: str
    work: Callable[[], Coroutine[Any, Any, Any]]
    every_s: float | None = None
    at_once: bool = False
    to_the_end: bool = False

    async def run(self) -> None:
        """Run until cancelled."""
        if self.every_s is None:
            await self.work()
            return
        if not self.at_once:
            await asyncio.sleep(self.every_s)
        while True:
            try:
                await self.work()
            except StorageError as exc:
                log.warning("work_failed", work=self.name, error=str(exc))
            except Exception as exc:
                # Whatever it is, messages are still answered.
                log.exception("work_failed", work=self.name, error=repr(exc))
            await asyncio.sleep(self.every_s)


def parts_of(gateway: Gateway, journal: CrashJournal | None = None) -> list[GatewayPart]:
    """Return all that runs side by side, but for the worker, which ends with its last turn.

    Args:
        journal: Of a process of its own, which also reloads and notifies its service manager.
    """
    platforms, beside, replica = gateway.platforms, gateway.beside, gateway.replica
    meanings, reader, alerts = beside.indexer.meanings, beside.recall.reader, platforms.alerts
    backups = Backups(gateway.database, replica, gateway.settings)
    pruner, watch = gateway.reloading.parts.pruner, platforms.examination.vitals.watch
    parts = [
        GatewayPart("replica", replica.run, to_the_end=True),
        GatewayPart("delivery", gateway.delivery.run, to_the_end=True),
        GatewayPart("reactions", platforms.reactions.run, to_the_end=True),
        GatewayPart("plugins", beside.recall.run, to_the_end=True),
        *(GatewayPart(each.name, each.keep) for each in platforms.supervised),
        GatewayPart("files", beside.files.run),
        GatewayPart("inquiries", beside.inquiries.sweep, questions.SWEEP_S),
        GatewayPart("prepare summaries", beside.preparations.run),
        GatewayPart("search index", beside.indexer.feed_all, search.FEED_EVERY_S),
        GatewayPart("watch", watch.look, silence.LOOK_EVERY_S),
        GatewayPart("modes", partial(home.keep_modes, lambda: gateway.settings), home.LOOK_EVERY_S),
        GatewayPart("prune", pruner.prune, pruning.PRUNE_EVERY_S, at_once=True),
        GatewayPart("backups", backups.run),
    ]
    if platforms.others is not None:
        parts.append(GatewayPart("other replicas", platforms.others.run, to_the_end=True))
    if meanings is not None:
        work = partial(meanings.make_all_if_oldest, lambda: replica.id)
        parts.append(GatewayPart("embeddings", work, search.EMBED_EVERY_S, at_once=True))
    if reader is not None:
        parts.append(GatewayPart("memory", reader.run))
    if alerts is not None:
        parts.append(GatewayPart("alerts", alerts.look, alerts_watch.LOOK_EVERY_S))
        if (hook := alerts.webhook) is not None:
            parts.append(GatewayPart("webhook of alerts", hook.post_due, webhook.LOOK_EVERY_S))
    if journal is not None:
        parts.append(GatewayPart("crash journal", journal.run, to_the_end=True))
        parts.append(GatewayPart("reload", gateway.reloading.run, to_the_end=True))
        if (manager := service_manager()) is not None:
            pulse = Pulse(manager, gateway.database, replica, gateway.worker.still_s)
            parts.append(GatewayPart("service manager", pulse.run, to_the_end=True))
    return parts


@asynccontextmanager
async def serving(
    gateway: Gateway, stop: asyncio.Event, force: asyncio.Event, journal: CrashJournal | None = None
) -> AsyncIterator[tuple[int, Sequence[Checked]]]:
    """Run all parts; the body begins once messages are accepted, and its end waits for `stop`.

    Then: intake off, turns finish (not if `force` is set), what is committed is delivered.

    Args:
        journal: See `parts_of`.

    Yields:
        The HTTP server's port, and what the platforms say of their tokens.
    """
    supervised = gateway.platforms.supervised
    port = await gateway.server.start()
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(gateway.worker.run(), name="worker")
        to_the_end, to_the_stop = list[asyncio.Task[Any]](), list[asyncio.Task[Any]]()
        for each in parts_of(gateway, journal):
            started = tasks.create_task(each.run(), name=each.name)
            (to_the_end if each.to_the_end else to_the_stop).append(started)
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
        delivered = tasks.create_task(_wait_idle(gateway), name="last deliveries")
        await _either(delivered, forced, DELIVER_WITHIN_S)
        if not delivered.done():
            log.warning("delivery_unfinished", after_s=DELIVER_WITHIN_S)
        for task in (delivered, forced, *to_the_end):
            task.cancel()
    await gateway.replica.leave()
    log.info("gateway_stopped")


async def _either(one: asyncio.Task[None], other: asyncio.Task[Any], within_s: float) -> None:
    await asyncio.wait({one, other}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)


async def _wait_idle(gateway: Gateway) -> None:
    """Return once everything committed is delivered, and plugins were notified."""
    await gateway.delivery.wait_idle()
    await gateway.beside.recall.wait_idle()


@asynccontextmanager
async def assembled(
    settings: Settings,
    database: Database,
    agent: Agent,
    accounts: Accounts,
    origin: AgentOrigin | None = None,
    *,
    death: Death | None = None,
) -> AsyncIterator[Gateway]:
    """Connect the parts. Whatever an earlier process left unfinished becomes ready.

    Each part is complete once it is built (decision 110).

    Args:
        origin: With the loaded plugins; None for none, and settings that do not change.
        death: How that process ended, or None if nothing is known of it.
    """
    origin = origin or AgentOrigin()
    access, wakeups, traffic = Access(settings.access, settings.web), Wakeups(), Traffic()
    mind = build_mind(settings, agent, database, origin.plugins, origin.writers)
    receiving = AccountLeases(is_alone=database.server is None)
    rules = build_rules(settings, access, mind)
    intake = GatewayIntake(database, rules, accounts.renderers, wakeups, traffic, receiving)
    links = ChatLinks(settings.web.token)
    door = WebDoor(database, access, links.token, provider=identity_provider(access.web))
    chats = ChatHistory(database, intake.facts, links)
    adapters: dict[Account, Adapter] = {
        (each.platform, each.account): each
        if each.platform == BUILT_IN
        else ReplaceableAdapter(each)
        for each in accounts.connect(intake, chats, door)
    }
    await _tell_at_the_start(database, adapters, intake)

    owners, plugins = Owners(access, accounts.renderers), origin.plugins
    budgets = Budgets(database, settings.budget, settings.sessions.timezone)
    reader = build_memory_reader(settings, mind.agent, mind.readers, budgets, owners, wakeups)
    beside = Beside(
        Preparations(database, mind.agent, mind.context, budgets),
        Attachments(database, adapters, settings.attachments, wakeups),
        Inquiries(database, owners, settings.tools.approval_valid_s, wakeups),
        Indexer(database, build_embedder(settings, database)),
        Recall(database, plugins, access, reader),
    )
    shared = Shared(database, owners, wakeups, Stops(), budgets, adapters, plugins, beside)
    # After everything that can fail: a start that ends earlier must not charge that death.
    place = f"{socket.gethostname()} {settings.home}"
    replica = await registered(database, place, death or Death(), receiving, accounts.share)
    worker = Worker(database, replica, turn_kit_of(TurnParts(settings, mind, shared)), [*adapters])
    delivery = Delivery(database, replica, adapters, traffic, Burials(owners), links)
    reactions = ReactionQueue(adapters)
    _listen(shared, worker, delivery, reactions, mind.context)

    can_restart = accounts.make is not None
    supervised = supervised_of(adapters.values(), receiving)
    parts = LiveParts(
        shared,
        intake,
        worker,
        delivery,
        Pruner(database, settings.retention, settings.storage.raw_days),
        Rotation(settings, mind.models, mind.agent.recovery.rests, can_restart),
        supervised,
        partial(accounts.make, intake, chats, door) if accounts.make else None,
    )
    reloading = Reloading(settings, mind, parts, origin)
    watch = Watch(database, adapters, traffic, replica)
    examination = _examination(reloading, watch, origin)
    alerts = build_alerts(lambda: reloading.settings, examination, wakeups, owners)
    others = _others(reloading, accounts)
    platforms = Platforms(adapters, supervised, examination, reactions, others, alerts)
    instruments = Instruments(reloading, watch)
    server = _server(reloading, examination, alerts, instruments, door)
    async with AsyncExitStack() as closing:
        closes = (replica.close, reloading.close, server.stop)
        # The last one first: the adapters.
        for close in (*closes, *(each.close for each in adapters.values())):
            closing.push_async_callback(close)
        await closing.enter_async_context(instruments.recording())
        yield Gateway(reloading, database, platforms, intake, worker, delivery, beside, server)


def _examination(reloading: Reloading, watch: Watch, origin: AgentOrigin) -> Examination:
    """Return the checks of a running gateway, by the settings it uses."""

    def loaded() -> Loaded:
        return origin.source.loaded if origin.source else Loaded(reloading.settings, {}, {})

    vitals = Vitals(
        reloading.parts.supervised,
        watch,
        reloading.parts.shared.budgets,
        origin.foreign.states,
        lambda: reloading.mind.standing,
        lambda: reloading.refused,
    )
    return Examination(vitals, loaded, lambda: origin.line)


def _listen(
    shared: Shared,
    worker: Worker,
    delivery: Delivery,
    reactions: ReactionQueue,
    context: ContextParts,
) -> None:
    wakeups = shared.wakeups
    wakeups.work.listen(worker.notify)
    wakeups.ready.listen(worker.wake)
    wakeups.stop.listen(shared.stops.stop)
    wakeups.files.listen(shared.beside.files.notify)
    wakeups.outbox.listen(delivery.notify)
    wakeups.reaction.listen(reactions.show)
    wakeups.forgotten.listen(context.views.clear)
    worker.replica.on_lost(worker.drop)
    worker.replica.on_news(worker.wake)


def _others(reloading: Reloading, accounts: Accounts) -> OtherReplicas | None:
    """Return the exchange with other replicas, or None on SQLite, which has none."""
    shared = reloading.parts.shared
    if shared.database.server is None:
        return None
    here = accounts.elsewhere
    chats = here if isinstance(here, SharedChats) else SharedChats()
    others = OtherReplicas(shared.database, reloading.parts.worker.replica, shared.stops, chats)
    others.news["forgotten"].listen(shared.wakeups.forgotten)
    others.news["secrets"].listen(reloading.notify)
    return others


async def _tell_at_the_start(
    database: Database, adapters: Mapping[Account, Adapter], intake: GatewayIntake
) -> None:
    """Notify people approved meanwhile; log the conversations that are unreachable."""
    await intake.tell_approved()
    for platform, account, count in await database.read(history.accounts):
        if (platform, account) not in adapters:
            log.warning(
                "account_not_configured", platform=platform, account=account, conversations=count
            )


def _server(
    reloading: Reloading,
    examination: Examination,
    alerts: AlertWatch | None,
    instruments: Instruments,
    door: WebDoor,
) -> HttpServer:
    """Return the server of the public port, and of the command line's Unix socket."""
    parts, settings, health = reloading.parts, reloading.settings, Health(examination)
    shared, intake = parts.shared, parts.intake
    operator = Operator(reloading)
    inside = Inside(shared.database, health, intake.facts, intake.money, operator, shared.plugins)
    on = settings.web
    # One adapter may have several connections.
    adapters = {id(each.adapter): each.adapter for each in parts.supervised}.values()
    chats = [each for each in adapters if each.platform == BUILT_IN]
    chat_page = [route for each in chats for route in routes_of(each)]
    webhooks = [route for each in adapters if each not in chats for route in routes_of(each)]
    guard = Guard(door, on)
    page = [*chat_page, *Console(inside, guard).routes()] if on.enabled else []
    own = [*health.routes(guard), *instruments.routes()]
    apart = None
    if on.webhook_port is not None:
        routes = [*health.routes(None), *webhooks]
        keys = "web.webhook_host, web.webhook_port"
        apart, webhooks = Port(on.webhook_host or on.host, on.webhook_port, routes, keys), []
    # `parley chat` reaches the web chat through the socket even if the page is not served.
    private = [] if on.enabled else chat_page
    private = [*private, health.control_route(), *control.alert_routes(alerts)]
    return HttpServer(
        Port(on.host, on.port, [*own, *webhooks, *page]),
        settings.home / control.SOCKET,
        private=[*private, *operators.routes(operator)],
        webhooks=apart,
        connections=Connections(on.max_connections, on.connections_per_address, on.trusted),
    )
