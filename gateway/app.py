"""Runs a gateway, from the settings to its end: the only file that connects concrete classes.

`run` is the whole story; its caller holds the home (`own_home` in gateway/supervision/home.py).
`assembled` connects the objects, `parts_of` lists what runs side by side, `serving` runs it and
stops it in order. What the settings name is built in gateway/wiring.py.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog
from aiohttp import web

from adapters.base import Adapter
from adapters.registry import BUILT_IN
from adapters.web.guard import Guard
from agent.models.base import ChatModel
from agent.plugins.loading import load_plugins
from agent.processes import confinement, descriptors
from agent.tokens import load_beside
from agent.turn.state import Agent
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
from gateway.supervision.accounts import ReplaceableAdapter, Supervised, supervised_of
from gateway.supervision.crash_journal import CrashJournal
from gateway.supervision.credentials import Checked, Rotation
from gateway.supervision.service_manager import Pulse, service_manager
from gateway.supervision.silence import Traffic, Watch
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
    learn_windows,
    load_adapters,
    models_of,
    open_tools,
    registered,
)

log = structlog.get_logger()

Account = tuple[str, str]

DELIVER_WITHIN_S = 5.0
"""How long a stop waits for committed answers to be sent; the rest is sent at the next start."""


@dataclass(frozen=True, slots=True)
class Platforms:
    """The connected accounts, and who looks after them.

    Attributes:
        others: What replicas tell each other that serve the same accounts; None on SQLite.
        alerts: Tells owners of troubles; None where the settings say so.
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
        """What it goes by; a reload puts other settings in their place."""
        return self.reloading.settings

    @property
    def replica(self) -> Replica:
        """What this process is among all that work on the database."""
        return self.worker.replica


@dataclass(frozen=True, slots=True)
class Welcome:
    """What is said once messages are accepted.

    Attributes:
        owner_code: What the first owner sends to the bot; None where there is an owner.
        warnings: What does not work as it may have been meant.
        checks: Which keys and tokens are taken.
        sign_in: The secret of a link that signs the owner in; None where there is no page.
        summaries: Who writes them.
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
        settings: All of them; the caller has `own_home` with them.
        on_ready: Called once messages are accepted.
        source: Where the settings are read again; None: they stay as they are.
        whole: What the audit log notes where `settings` are these without some parts.

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
            learn_windows(line),
            learn_windows(writers),
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
        credentials.note(agent.recovery.rests, checked)
        origin = AgentOrigin(plugins, foreign, line, writers, source)
        accounts = build_accounts(settings)
        gateway = await held.enter_async_context(
            assembled(settings, database, agent, accounts, origin, death=journal.owed)
        )
        # The turns that the last death interrupted are charged with it by now, once.
        journal.settled()
        await gateway.reloading.note(whole or settings)
        welcome = await _welcome(settings, gateway, agent, origin)
        running = serving(gateway, stop, force, of_process(gateway, journal))
        port, found = await held.enter_async_context(running)
        on_ready(replace(welcome, port=port, checks=(*checked, *others, *found)))


@asynccontextmanager
async def _closed_if_it_fails(models: Sequence[ChatModel]) -> AsyncIterator[None]:
    """Close the models where the body fails: they were asked before the parts that close them."""
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
    """Return what the first signal sets, and what the second one does."""
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
    """Return what is said once there is a port."""
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
    """Something that runs beside others.

    Attributes:
        work: Goes on until it is cancelled; with `every_s` one check, which is repeated.
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
                # Whatever it is, people go on being answered.
                log.exception("work_failed", work=self.name, error=repr(exc))
            await asyncio.sleep(self.every_s)


def parts_of(gateway: Gateway) -> list[GatewayPart]:
    """Return all that runs side by side, but for the worker, which ends with its last turn."""
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
    if alerts is not None and alerts.webhook is not None:
        parts.append(
            GatewayPart("webhook of alerts", alerts.webhook.post_due, webhook.LOOK_EVERY_S)
        )
    return parts


def of_process(gateway: Gateway, journal: CrashJournal) -> list[GatewayPart]:
    """Return what a process needs as well: its journal, reloads, what its service manager hears."""
    parts = [
        GatewayPart("crash journal", journal.run, to_the_end=True),
        GatewayPart("reload", gateway.reloading.run, to_the_end=True),
    ]
    if (manager := service_manager()) is not None:
        still_s = gateway.worker.still_s
        pulse = Pulse(manager, gateway.database, gateway.replica, still_s)
        parts.append(GatewayPart("service manager", pulse.run, to_the_end=True))
    return parts


@asynccontextmanager
async def serving(
    gateway: Gateway, stop: asyncio.Event, force: asyncio.Event, more: Sequence[GatewayPart] = ()
) -> AsyncIterator[tuple[int, Sequence[Checked]]]:
    """Run all parts; the body begins once messages are accepted, and its end waits for `stop`.

    Then: intake off, turns finish, what is committed is delivered.

    Args:
        force: Ends it without waiting for turns.
        more: What else runs.

    Yields:
        The HTTP server's port, and what the platforms say of their tokens.
    """
    supervised = gateway.platforms.supervised
    port = await gateway.server.start()
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(gateway.worker.run(), name="worker")
        to_the_end, to_the_stop = list[asyncio.Task[Any]](), list[asyncio.Task[Any]]()
        for each in (*parts_of(gateway), *more):
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
    """Return when all that was committed is delivered, and plugins were told of it."""
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

    Each part is complete once it is built: nothing is put into it later (decision 110).

    Args:
        database: Open; of SQLite it is used by nobody else.
        origin: With the plugins that were loaded; None for none, and settings that stay.
        death: How that process ended; None where nothing is known of it.
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
    adapters = _replaceable(accounts.connect(intake, chats, door))
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
    # Behind all that can fail: a start that ends earlier must charge nobody with that death.
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
    async with (
        _closed_at_the_end(adapters.values(), replica.close, reloading.close, server.stop),
        instruments.recording(),
    ):
        yield Gateway(reloading, database, platforms, intake, worker, delivery, beside, server)


def _examination(reloading: Reloading, watch: Watch, origin: AgentOrigin) -> Examination:
    """Return what checks the gateway by the settings that it uses."""

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


def _replaceable(connected: Iterable[Adapter]) -> dict[Account, Adapter]:
    """Return the adapters by account; what stands for one where it can be restarted."""
    return {
        (each.platform, each.account): each
        if each.platform == BUILT_IN
        else ReplaceableAdapter(each)
        for each in connected
    }


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
    """Return what tells the other replicas, and hears them; None on SQLite, which has none."""
    shared = reloading.parts.shared
    if shared.database.server is None:
        return None
    here = accounts.elsewhere
    chats = here if isinstance(here, SharedChats) else SharedChats()
    others = OtherReplicas(shared.database, reloading.parts.worker.replica, shared.stops, chats)
    others.news["forgotten"].listen(shared.wakeups.forgotten)
    others.news["secrets"].listen(reloading.notify)
    return others


@asynccontextmanager
async def _closed_at_the_end(
    adapters: Iterable[Adapter], *closes: Callable[[], Coroutine[Any, Any, None]]
) -> AsyncIterator[None]:
    """Close the adapters when the body ends, then call the others, the last one first."""
    async with AsyncExitStack() as closing:
        for close in (*closes, *(each.close for each in adapters)):
            closing.push_async_callback(close)
        yield


async def _tell_at_the_start(
    database: Database, adapters: Mapping[Account, Adapter], intake: GatewayIntake
) -> None:
    """Tell people what happened to them meanwhile; log the conversations that are unreachable."""
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
    """Return the server of the public port and of the Unix socket, which is the command line's."""
    parts, settings, health = reloading.parts, reloading.settings, Health(examination)
    shared, intake = parts.shared, parts.intake
    operator = Operator(reloading)
    inside = Inside(shared.database, health, intake.facts, intake.money, operator, shared.plugins)
    on = settings.web
    chat_page: list[web.RouteDef] = []
    webhooks: list[web.RouteDef] = []
    # An adapter that receives over several connections is there as often.
    for adapter in {id(each.adapter): each.adapter for each in parts.supervised}.values():
        # Only adapters with a page or a webhook have routes.
        routes: list[web.RouteDef] = getattr(adapter, "routes", list)()
        (chat_page if adapter.platform == BUILT_IN else webhooks).extend(routes)
    apart = on.webhook_port is not None
    guard = Guard(door, on)
    page = [*chat_page, *Console(inside, guard).routes()] if on.enabled else []
    own = [*health.routes(guard), *instruments.page.routes()]
    public = [*own, *([] if apart else webhooks), *page]
    # `parley chat` reaches the web chat through the socket also where the page is not served.
    private = [] if on.enabled else chat_page
    private = [*private, health.control_route(), *control.alert_routes(alerts)]
    return HttpServer(
        Port(on.host, on.port, public),
        settings.home / control.SOCKET,
        private=[*private, *operators.routes(operator)],
        webhooks=_webhook_port(settings, [*health.routes(None), *webhooks]),
        connections=Connections(on.max_connections, on.connections_per_address, on.trusted),
    )


def _webhook_port(settings: Settings, routes: Sequence[web.RouteDef]) -> Port | None:
    """Return where webhooks have a port of their own, None where they are on that of the page."""
    on = settings.web
    if on.webhook_port is None:
        return None
    keys = "web.webhook_host, web.webhook_port"
    return Port(on.webhook_host or on.host, on.webhook_port, routes, keys)
