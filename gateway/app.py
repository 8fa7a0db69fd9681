"""Runs a gateway, from the settings to its end: the only file that connects concrete classes.

`run` is the whole story; its caller holds the home (`own_home` in gateway/supervision/home.py).
`assembled` is the list of parts, `serve` is what runs side by side and in which order it stops.
Parts that the settings name are built in gateway/wiring.py.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import structlog
from aiohttp import web

from adapters.base import Adapter, Share
from adapters.registry import BUILT_IN
from adapters.web.guard import Guard
from agent.models.base import ChatModel
from agent.plugins.loading import load_plugins
from agent.processes import confinement, descriptors
from agent.tokens.estimate import load_beside
from agent.turn.state import Agent
from gateway.access import web_door
from gateway.access.oidc import provider_of
from gateway.access.pairing import owner_code
from gateway.access.policy import Access, Owners
from gateway.access.web_door import WebDoor
from gateway.agent_ports.budgets import Budgets, refuse_unpriced
from gateway.agent_ports.files import Attachments
from gateway.agent_ports.questions import Inquiries
from gateway.agent_ports.search import Indexer
from gateway.backup.backups import Backups
from gateway.backup.pruning import Pruner
from gateway.commands.status_figures import start_warnings
from gateway.console.register import Inside
from gateway.console.site import Console
from gateway.context.memory import Recall
from gateway.context.parts import Beside, Shared, TurnParts
from gateway.context.summaries import Preparations
from gateway.context.window import ContextParts
from gateway.findings.report import Examination
from gateway.findings.vitals import Vitals
from gateway.findings.watch import AlertWatch
from gateway.http import control
from gateway.http.connections import Connections
from gateway.http.control import Operator
from gateway.http.server import ChatHistory, Health, HttpServer, Port
from gateway.metrics.instruments import Instruments
from gateway.metrics.state import LookedAt
from gateway.pipeline.delivery import Burials, Delivery
from gateway.pipeline.intake import GatewayIntake
from gateway.pipeline.reactions import ReactionQueue
from gateway.pipeline.worker import Worker
from gateway.reload.reloading import AgentOrigin, LiveParts, Reloading, Source, turn_kit_of
from gateway.replicas.other_replicas import OtherReplicas, SharedChats
from gateway.replicas.replica import AccountLeases, Beginning, Replica
from gateway.settings.fingerprints import fingerprints_of
from gateway.settings.loading import Loaded, keep_last_used
from gateway.settings.tree import Settings
from gateway.signals import Stops, Wakeups
from gateway.storage import audit_log
from gateway.storage.database import Database, location_of
from gateway.storage.migrations import open_locked
from gateway.storage.people import mcp
from gateway.storage.people.web_users import ChatLinks
from gateway.storage.queue.blame import Death
from gateway.storage.reports import history
from gateway.supervision import start_checks
from gateway.supervision.accounts import ReplaceableAdapter, Supervised, supervised_of
from gateway.supervision.crash_journal import CrashJournal
from gateway.supervision.home import keep_modes, restore_modes
from gateway.supervision.rotation import Rotation
from gateway.supervision.service_manager import Pulse, ServiceManager, service_manager
from gateway.supervision.silence import Traffic, Watch
from gateway.supervision.start_checks import Checked
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
    caching_text,
    learn_windows,
    load_adapters,
    models_of,
    open_tools,
    registered,
    with_told_windows,
)

log = structlog.get_logger()

Account = tuple[str, str]
Work = dict[str, Coroutine[Any, Any, Any]]
"""What runs side by side, by name."""

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
    line = build_line(settings)
    refuse_unpriced(settings.budget, models_of(line))
    async with _closed_if_it_fails(models_of(line)):
        checked, (told, others), _, _ = await asyncio.gather(
            learn_windows(line),
            with_told_windows(settings),
            # While the providers take their time to answer.
            asyncio.to_thread(load_adapters, settings),
            load_beside(models_of(line)[0].name),
        )
        restore_modes(settings)
        plugins = load_plugins(settings.plugins, settings.home)
        journal.tell_of_the_one_before()
        opened = open_locked(location_of(settings), settings.home)
        named = (whole or settings).tools.mcp
        async with (
            opened as database,
            open_tools(settings, await database.write(mcp.at_start, named)) as foreign,
        ):
            agent = build_agent(settings, line, plugins, foreign)
            start_checks.note(agent.recovery.rests, checked)
            accounts = build_accounts(settings)
            origin = AgentOrigin(plugins, foreign, line, source)
            async with assembled(
                told, database, agent, accounts, origin, death=journal.owed
            ) as gateway:
                # The turns that the last death interrupted are charged with it by now, once.
                journal.settled()
                await _note_settings(database, whole or settings)
                welcome = await _welcome(settings, gateway, agent, origin)
                await serve(
                    *(gateway, stop, force),
                    lambda port, found: on_ready(
                        replace(welcome, port=port, checks=(*checked, *others, *found))
                    ),
                    lambda: _until_the_process_ends(gateway, journal),
                )


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


async def _note_settings(database: Database, settings: Settings) -> None:
    """Enter in the audit log what the gateway goes by."""
    written = fingerprints_of(settings.home).of_settings(settings)
    keep_last_used(settings)
    await database.write(audit_log.note_settings, written)


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


def _until_the_process_ends(gateway: Gateway, journal: CrashJournal) -> Work:
    """Return what runs beside the parts: the journal, reloads, what the service manager is told."""
    work: Work = {"crash journal": journal.run(), "reload": gateway.reloading.run()}
    if (manager := service_manager()) is not None:
        still_s = gateway.worker.still_s
        pulse = Pulse(ServiceManager(manager), gateway.database, gateway.replica, still_s)
        work["service manager"] = pulse.run()
    return work


async def serve(
    gateway: Gateway,
    stop: asyncio.Event,
    force: asyncio.Event,
    on_ready: Callable[[int, Sequence[Checked]], None],
    beside: Callable[[], Work] = dict,
) -> None:
    """Run all parts; after `stop`: intake off, turns finish, then deliver, then close.

    Args:
        force: Ends it without waiting for turns.
        on_ready: Called with the HTTP server's port, and what the platforms say of their tokens,
            once messages are accepted.
        beside: Returns what else runs to the end.
    """
    supervised = gateway.platforms.supervised
    port = await gateway.server.start()
    async with asyncio.TaskGroup() as tasks:
        to_the_end = _started(tasks, _until_the_end(gateway) | beside())
        working = tasks.create_task(gateway.worker.run(), name="worker")
        to_the_stop = _started(tasks, _until_a_stop(gateway))
        accounts = gateway.settings.platforms.on()
        found = await start_checks.of_platforms(supervised, stop, accounts)
        log.info("gateway_ready", port=port, adapters=[each.name for each in supervised])
        on_ready(port, found)
        await stop.wait()
        log.info("gateway_stopping", grace_s=gateway.settings.queue.grace_s)
        for each in to_the_stop:
            each.cancel()
        forced = tasks.create_task(force.wait(), name="second signal")
        await _finish_turns(gateway, working, forced)
        delivered = tasks.create_task(_wait_idle(gateway), name="last deliveries")
        await asyncio.wait(
            {delivered, forced}, timeout=DELIVER_WITHIN_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not delivered.done():
            log.warning("delivery_unfinished", after_s=DELIVER_WITHIN_S)
        for each in (delivered, forced, *to_the_end):
            each.cancel()
    await gateway.replica.leave()
    log.info("gateway_stopped")


def _until_a_stop(gateway: Gateway) -> Work:
    """Return what brings messages in, and what is done beside their path."""
    platforms, beside = gateway.platforms, gateway.beside
    receiving: Work = {supervised.name: supervised.keep() for supervised in platforms.supervised}
    if platforms.alerts is not None:
        receiving["alerts"] = platforms.alerts.run()
    if beside.indexer.meanings is not None:
        receiving["embeddings"] = beside.indexer.meanings.run(lambda: gateway.replica.id)
    if beside.recall.reader is not None:
        receiving["memory"] = beside.recall.reader.run()
    return receiving | {
        "files": beside.files.run(),
        "inquiries": beside.inquiries.run(),
        "prepare summaries": beside.preparations.run(),
        "search index": beside.indexer.run(),
        "watch": platforms.examination.vitals.watch.run(),
        "modes": keep_modes(lambda: gateway.settings),
        "prune": gateway.reloading.parts.pruner.run(),
        "backups": Backups(gateway.database, gateway.replica, gateway.settings).run(),
    }


def _until_the_end(gateway: Gateway) -> Work:
    """Return what tells of turns that have ended: of the last ones, too."""
    others = gateway.platforms.others
    return ({} if others is None else {"other replicas": others.run()}) | {
        "replica": gateway.replica.run(),
        "delivery": gateway.delivery.run(),
        "reactions": gateway.platforms.reactions.run(),
        "plugins": gateway.beside.recall.run(),
    }


def _started(tasks: asyncio.TaskGroup, work: Work) -> list[asyncio.Task[Any]]:
    return [tasks.create_task(each, name=name) for name, each in work.items()]


async def _wait_idle(gateway: Gateway) -> None:
    """Return when all that was committed is delivered, and plugins were told of it."""
    await gateway.delivery.wait_idle()
    await gateway.beside.recall.wait_idle()


async def _finish_turns(
    gateway: Gateway, working: asyncio.Task[None], forced: asyncio.Task[bool]
) -> None:
    gateway.worker.stop()
    grace_s = gateway.settings.queue.grace_s
    await asyncio.wait({working, forced}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    await asyncio.wait({working})


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
    access, wakeups, traffic = (
        Access(settings.access, settings.web),
        Wakeups(),
        Traffic(),
    )
    mind = build_mind(settings, agent, database, origin.plugins)
    links = ChatLinks(settings.web.token)
    rules = build_rules(settings, access, mind)
    receiving = AccountLeases(is_alone=database.server is None)
    intake = GatewayIntake(database, rules, accounts.renderers, wakeups, traffic, receiving)
    door = WebDoor(database, access, links.token, provider=provider_of(access.web))
    chats = ChatHistory(database, intake.facts, links)
    adapters = _replaceable(accounts.connect(intake, chats, door))
    owners = Owners(access, accounts.renderers)
    await _tell_at_the_start(database, adapters, intake)

    budgets = Budgets(database, settings.budget, settings.sessions.timezone)
    embedder = build_embedder(settings, database)
    reader = build_memory_reader(settings, mind.agent, mind.readers, budgets, owners, wakeups)
    beside = Beside(
        Preparations(database, mind.agent, mind.context, budgets),
        Attachments(database, adapters, settings.attachments, wakeups),
        Inquiries(database, adapters, settings.tools.approval_valid_s, wakeups, access),
        Indexer(database, embedder),
        Recall(database, origin.plugins, access, reader),
    )
    stops, reactions = Stops(), ReactionQueue(adapters)
    shared = Shared(database, owners, wakeups, stops, budgets, adapters, origin.plugins, beside)
    kit = turn_kit_of(TurnParts(settings, mind, shared))
    # Behind all that can fail: a start that ends earlier must charge nobody with that death.
    replica = await registered(database, _beginning(settings, death, receiving, accounts.share))
    worker = Worker(database, replica, kit, list(adapters))
    burials = Burials(owners)
    delivery = Delivery(database, replica, adapters, traffic, burials, links)
    _listen(shared, worker, delivery, reactions, mind.context)
    supervised, make = supervised_of(adapters.values(), receiving), accounts.make
    parts = LiveParts(
        *(shared, intake, worker, delivery),
        Pruner(database, settings.retention, settings.storage.raw_days),
        Rotation(settings, mind.models, mind.agent.recovery.rests, accounts.make is not None),
        supervised,
        make and (lambda name, block: make(name, block, intake, chats, door)),
    )
    reloading = Reloading(settings, mind, parts, origin)
    vitals = Vitals(
        *(supervised, Watch(database, adapters, traffic, replica), budgets),
        *(origin.foreign.states, lambda: reloading.mind.standing, lambda: reloading.refused),
    )
    examination = _examination(vitals, origin, reloading)
    health, operator = (
        Health(examination),
        Operator(*(database, wakeups, intake.tell_approved, reloading), intake.answer_as_owner),
    )
    alerts = build_alerts(lambda: reloading.settings, examination, wakeups, owners)
    others = _others(database, replica, wakeups, stops, reloading, accounts)
    platforms = Platforms(adapters, supervised, examination, reactions, others, alerts)
    inside = Inside(*(database, health, intake.facts, intake.money, operator), origin.plugins)
    routes = [health.control_route(), *control.alert_routes(alerts), *control.routes(operator)]
    instruments = Instruments(LookedAt(reloading, database, supervised, vitals.watch, worker))
    server = _server(instruments, inside, routes, door)
    async with (
        _closed_at_the_end(adapters.values(), replica.close, reloading.close, server.stop),
        instruments.recording(),
    ):
        yield Gateway(reloading, database, platforms, intake, worker, delivery, beside, server)


def _examination(vitals: Vitals, origin: AgentOrigin, reloading: Reloading) -> Examination:
    """Return what looks at the gateway by the settings that it uses."""

    def loaded() -> Loaded:
        return origin.source.loaded if origin.source else Loaded(reloading.settings, {}, {})

    return Examination(vitals, loaded, lambda: origin.line)


def _replaceable(connected: Iterable[Adapter]) -> dict[Account, Adapter]:
    """Return the adapters by account; what stands for one where it can be restarted."""
    return {
        (each.platform, each.account): each
        if each.platform == BUILT_IN
        else ReplaceableAdapter(each)
        for each in connected
    }


def _beginning(
    settings: Settings, death: Death | None, receiving: AccountLeases, share: Share
) -> Beginning:
    place = f"{socket.gethostname()} {settings.home}"
    return Beginning(place, death or Death(), receiving, share)


def _listen(
    shared: Shared,
    worker: Worker,
    delivery: Delivery,
    reactions: ReactionQueue,
    context: ContextParts,
) -> None:
    """Say who hears which hint."""
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


def _others(
    database: Database,
    replica: Replica,
    wakeups: Wakeups,
    stops: Stops,
    reloading: Reloading,
    accounts: Accounts,
) -> OtherReplicas | None:
    """Return what tells the other replicas, and hears them; None on SQLite, which has none."""
    if database.server is None:
        return None
    here = accounts.elsewhere
    shared = here if isinstance(here, SharedChats) else SharedChats()
    others = OtherReplicas(database, replica, stops, shared)
    others.news["forgotten"].listen(wakeups.forgotten)
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
    instruments: Instruments,
    inside: Inside,
    private: Sequence[web.RouteDef],
    door: WebDoor,
) -> HttpServer:
    """Return the server of the public port and of the Unix socket, which is the command line's."""
    settings, supervised = inside.settings, instruments.parts.supervised
    on = settings.web
    chat_page: list[web.RouteDef] = []
    webhooks: list[web.RouteDef] = []
    # An adapter that receives over several connections is there as often.
    for adapter in {id(each.adapter): each.adapter for each in supervised}.values():
        # Only adapters with a page or a webhook have routes.
        routes: list[web.RouteDef] = getattr(adapter, "routes", list)()
        (chat_page if adapter.platform == BUILT_IN else webhooks).extend(routes)
    apart = on.webhook_port is not None
    guard, health = Guard(door, on), inside.health
    page = [*chat_page, *Console(inside, guard).routes()] if on.enabled else []
    own = [*health.routes(guard), *instruments.page.routes()]
    public = [*own, *([] if apart else webhooks), *page]
    # `parley chat` reaches the web chat through the socket also where the page is not served.
    hidden = [] if on.enabled else chat_page
    return HttpServer(
        Port(on.host, on.port, public),
        settings.home / control.SOCKET,
        private=[*private, *hidden],
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
