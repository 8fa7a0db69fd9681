"""Assembles a gateway from the settings and runs it: the only file that knows concrete classes.

A platform or model that is not configured is not imported: the SDKs cost 40 to 75 MB each.
"""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from adapters.base import Adapter, Intake
from agent.billing import CacheRules
from agent.context_engine import ContextEngine, Limits
from agent.engines.registry import resolve
from agent.errors import ModelError
from agent.loop import Agent
from agent.messages import ChatMessage
from agent.meter import TokenMeter
from agent.models.base import ChatModel
from agent.models.factory import build_model
from agent.prompt import build_system_prompt
from agent.recovery import RetryPolicy
from agent.redaction import Redactor
from agent.settings import AuxiliaryModelSettings, ModelSettings
from agent.summariser import Summariser
from agent.token_counter import counter_for, is_openai_family
from agent.tools.catalog import builtin_tools
from gateway import commands, control
from gateway.access import Access
from gateway.acks import Acks
from gateway.attachments import Attachments
from gateway.chats import ChatHistory
from gateway.commands import StatusFacts
from gateway.context import ContextParts, with_engine_tools
from gateway.delivery import Delivery
from gateway.errors import SettingsError, StorageError
from gateway.health import Health
from gateway.http import HttpServer
from gateway.intake import GatewayIntake, IntakeRules
from gateway.modelline import Configured, build_line, caching_text, learn_windows
from gateway.pairing import owner_code
from gateway.preparing import Preparations
from gateway.settings import Settings, secret_values
from gateway.spending import Budgets, unpriced
from gateway.storage import history, inbox, leases
from gateway.storage.engine import Database
from gateway.storage.opening import database_path, open_database
from gateway.supervision import Supervised
from gateway.turn import TurnRules, TurnRunner
from gateway.usagetexts import MoneyRules
from gateway.wakeups import Wakeups
from gateway.worker import Worker

if TYPE_CHECKING:
    from aiohttp import web

log = structlog.get_logger()

Account = tuple[str, str]

DELIVER_WITHIN_S = 5.0
"""How long a stop waits for committed answers to be sent; the rest is sent at the next start."""
PRUNE_EVERY_S = 3600.0


@dataclass(slots=True)
class Gateway:
    """A running gateway's parts, in the order of the path of a message."""

    settings: Settings
    database: Database
    adapters: dict[Account, Adapter]
    intake: GatewayIntake
    worker: Worker
    delivery: Delivery
    preparations: Preparations
    files: Attachments
    acks: Acks
    supervised: list[Supervised]
    server: HttpServer


@dataclass(frozen=True, slots=True)
class Welcome:
    """What is said once messages are accepted.

    Attributes:
        port: Of the HTTP server.
        caching: About the prompt cache.
        owner_code: What the first owner sends to the bot; None where there is an owner.
    """

    port: int
    caching: str
    owner_code: str | None = None


async def run(settings: Settings, on_ready: Callable[[Welcome], None]) -> None:
    """Run a gateway until SIGTERM or SIGINT; a second signal does not wait for turns.

    Args:
        settings: All of them.
        on_ready: Called once messages are accepted.

    Raises:
        GatewayError: It cannot start; nothing was changed.
    """
    stop = asyncio.Event()
    force = asyncio.Event()

    def on_signal() -> None:
        (force if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    line = build_line(settings)
    agent = build_agent(settings, line)
    refuse_unpriced(settings, agent.models)
    await learn_windows(line)
    await _load_encoding(agent.models[0].name)
    prepare_home(settings.home)
    caching = caching_text(agent.models[0], agent.caching)
    async with (
        open_database(database_path(settings)) as database,
        assembled(settings, database, agent, build_adapters) as gateway,
    ):
        settle_memory()
        code = await owner_code(database, settings)
        await serve(gateway, stop, force, lambda port: on_ready(Welcome(port, caching, code)))


def settle_memory() -> None:
    """Keep what start-up made out of later garbage collections.

    A full one over the modules alone would hold the event loop for 40 ms.
    """
    gc.collect()
    gc.freeze()


async def _load_encoding(model: str) -> None:
    """Load what counts an OpenAI model's tokens now: 0.15 s that no turn should wait for."""
    if is_openai_family(model):
        await asyncio.to_thread(counter_for(model).load)


async def serve(
    gateway: Gateway, stop: asyncio.Event, force: asyncio.Event, on_ready: Callable[[int], None]
) -> None:
    """Run all parts; after `stop`: intake off, turns finish, then deliver, then close."""
    port = await gateway.server.start()
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(gateway.delivery.run(), name="delivery")
        working = tasks.create_task(gateway.worker.run(), name="worker")
        pruning = tasks.create_task(_prune(gateway), name="prune")
        preparing = tasks.create_task(gateway.preparations.run(), name="prepare summaries")
        fetching = tasks.create_task(gateway.files.run(), name="files")
        reacting = tasks.create_task(gateway.acks.run(), name="reactions")
        receiving = [
            tasks.create_task(supervised.run(), name=supervised.name)
            for supervised in gateway.supervised
        ]
        log.info("gateway_ready", port=port, adapters=[each.name for each in gateway.supervised])
        on_ready(port)
        await stop.wait()
        log.info("gateway_stopping", grace_s=gateway.settings.queue.grace_s)
        for task in (pruning, preparing, fetching, *receiving):
            task.cancel()
        forced = tasks.create_task(force.wait(), name="second signal")
        await _finish_turns(gateway, working, forced)
        delivered = tasks.create_task(gateway.delivery.wait_idle(), name="last deliveries")
        await asyncio.wait(
            {delivered, forced}, timeout=DELIVER_WITHIN_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not delivered.done():
            log.warning("delivery_unfinished", after_s=DELIVER_WITHIN_S)
        ending: list[asyncio.Task[Any]] = [delivered, forced, sending, reacting]
        for each in ending:
            each.cancel()
    log.info("gateway_stopped")


async def _finish_turns(
    gateway: Gateway, working: asyncio.Task[None], forced: asyncio.Task[bool]
) -> None:
    gateway.worker.stop()
    grace_s = gateway.settings.queue.grace_s
    await asyncio.wait({working, forced}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    await asyncio.wait({working})


async def _prune(gateway: Gateway) -> None:
    """Drop raw updates that are older than `storage.raw_days`, a few at a time."""
    older_than_s = gateway.settings.storage.raw_days * 86400.0
    while True:
        try:
            pruned = await gateway.database.write(inbox.prune_raw, older_than_s)
        except StorageError as exc:
            log.warning("prune_failed", error=str(exc))
            pruned = 0
        await asyncio.sleep(1.0 if pruned else PRUNE_EVERY_S)


@asynccontextmanager
async def assembled(
    settings: Settings,
    database: Database,
    agent: Agent,
    make_adapters: Callable[[Settings, Intake, ChatHistory], Sequence[Adapter]],
) -> AsyncIterator[Gateway]:
    """Connect the parts. Whatever an earlier process left unfinished becomes ready."""
    replica = await database.write(leases.register, f"pid {os.getpid()}")
    reclaimed = await database.write(leases.reap_others, replica)
    if reclaimed:
        log.info("conversations_reclaimed", count=reclaimed)
    context = build_context(settings, agent)
    agent = with_engine_tools(agent, context)
    wakeups = Wakeups()
    renderers: dict[Account, Callable[[str], list[str]]] = {}
    rules = _rules(settings, agent, context)
    intake = GatewayIntake(database, rules, renderers, wakeups)
    chats = ChatHistory(database, rules.model)
    adapters = {
        (adapter.platform, adapter.account): adapter
        for adapter in make_adapters(settings, intake, chats)
    }
    renderers.update((account, adapter.render) for account, adapter in adapters.items())
    await intake.tell_approved()
    await _warn_of_lost_accounts(database, adapters)
    budgets = build_budgets(settings, database, agent, context)
    turn_rules = TurnRules(
        settings.queue, settings.sessions, budgets, rules.access, settings.attachments
    )
    turns = TurnRunner(database, agent, context, adapters, turn_rules, wakeups)
    agent.images.load = turns.files.load_image
    acks = Acks(adapters)
    worker = Worker(database, replica, turns, settings.queue, list(adapters))
    delivery = Delivery(database, replica, adapters)
    wakeups.work, wakeups.stop = worker.notify, turns.stops.stop
    wakeups.ready, wakeups.files = worker.wake, turns.files.notify
    wakeups.outbox, wakeups.reaction = delivery.notify, acks.show
    supervised = [Supervised(adapter) for adapter in adapters.values()]
    private = control.routes(database, wakeups, intake.tell_approved)
    server = _server(settings, supervised, Health(database, replica, supervised), private)
    async with AsyncExitStack() as closing:
        models = (*agent.models, *_writers(context))
        for each in {id(model): model for model in models}.values():
            closing.push_async_callback(each.close)
        closing.push_async_callback(server.stop)
        for adapter in adapters.values():
            closing.push_async_callback(adapter.close)
        yield Gateway(
            settings,
            database,
            adapters,
            intake,
            worker,
            delivery,
            turns.preparations,
            turns.files,
            acks,
            supervised,
            server,
        )


async def _warn_of_lost_accounts(database: Database, adapters: Mapping[Account, Adapter]) -> None:
    """Say which conversations nobody can reach: an account was renamed, or taken out."""
    for platform, account, count in await database.read(history.accounts):
        if (platform, account) not in adapters:
            log.warning(
                "account_not_configured", platform=platform, account=account, conversations=count
            )


def _rules(settings: Settings, agent: Agent, context: ContextParts) -> IntakeRules:
    return IntakeRules(
        access=Access(settings.access),
        queue=settings.queue,
        groups=settings.sessions.groups,
        model=_status_facts(settings, agent, context),
        money=_money(settings, [*agent.models, *_writers(context)]),
        attachments=settings.attachments,
    )


def _status_facts(
    settings: Settings, agent: Agent, context: ContextParts
) -> Callable[[], StatusFacts]:
    """Return what tells the model's figures as they are now: its window may shrink."""
    model = agent.models[0]
    names = tuple(tool.name for tool in agent.tools.schemas)
    prompt = ChatMessage(
        role="system", content=build_system_prompt(settings.agent.instructions, names)
    )
    fixed_tokens = TokenMeter(model.name, agent.tools.schemas).fixed_tokens(prompt)

    @lru_cache(maxsize=1)
    def within(limits: Limits) -> StatusFacts:
        engine = context.make_engine(limits)
        return StatusFacts(
            name=model.name,
            window_tokens=limits.context_length,
            threshold_tokens=_fires_at(engine) if context.enabled else None,
            engine=engine.name,
            fixed_tokens=fixed_tokens,
        )

    return lambda: within(context.limits_for(agent))


def _money(settings: Settings, models: Sequence[ChatModel]) -> MoneyRules:
    known = {model.name: model.facts.prices for model in models}
    return MoneyRules(
        prices={name: prices for name, prices in known.items() if prices is not None},
        rules={model.name: CacheRules.of(model.facts) for model in models},
        sender_daily_usd=settings.budget.sender_daily_usd,
        daily_usd=settings.budget.daily_usd,
        timezone=settings.sessions.timezone,
    )


def _writers(context: ContextParts) -> Sequence[ChatModel]:
    """Return the models that write summaries; the main one may be among them."""
    return context.summariser.models if context.summariser else ()


def _fires_at(engine: ContextEngine) -> int | None:
    """Return where an engine compresses, if it tells."""
    tokens = engine.get_status().get("threshold_tokens")
    return tokens if isinstance(tokens, int) else None


def _server(
    settings: Settings,
    supervised: Sequence[Supervised],
    health: Health,
    private: Sequence["web.RouteDef"],
) -> HttpServer:
    chat_page: list[web.RouteDef] = []
    webhooks: list[web.RouteDef] = []
    for each in supervised:
        routes: list[web.RouteDef] = getattr(each.adapter, "routes", list)()
        (chat_page if each.adapter.platform == "web" else webhooks).extend(routes)
    public = [*health.routes(), *webhooks, *(chat_page if settings.web.enabled else [])]
    hidden = [] if settings.web.enabled else chat_page
    return HttpServer(
        settings.web.host,
        settings.web.port,
        settings.home / control.SOCKET,
        public=public,
        private=[*private, *hidden],
    )


def build_agent(settings: Settings, line: Sequence[Configured]) -> Agent:
    """Return the agent: the configured models and the enabled tools.

    Raises:
        SettingsError: A tool does not exist.
    """
    try:
        tools = builtin_tools(settings.tools.enabled)
    except ValueError as exc:
        raise SettingsError(f"tools.enabled: {exc}") from exc
    return Agent(
        models=[model for block in line for model in block.models],
        tools=tools,
        settings=settings.agent,
        output=settings.tools.output,
        retry=RetryPolicy(retry_for_s=settings.model.retry_for_s),
        max_output_tokens=settings.model.max_output_tokens,
        caching=settings.prompt_caching,
    )


def build_budgets(
    settings: Settings, database: Database, agent: Agent, context: ContextParts
) -> Budgets:
    """Return who watches over the budgets; raises like `refuse_unpriced`."""
    refuse_unpriced(settings, [*agent.models, *_writers(context)])
    return Budgets(database, settings.budget, settings.sessions.timezone)


def refuse_unpriced(settings: Settings, models: Sequence[ChatModel]) -> None:
    """Check that every budget can be enforced.

    Raises:
        SettingsError: There is a budget, and a model whose price is not known.
    """
    if problems := unpriced(settings.budget, models):
        raise SettingsError("\n".join(problems))


def build_context(settings: Settings, agent: Agent) -> ContextParts:
    """Return what keeps views within the window: limits, the chosen engine, the summary model."""
    compression, model = settings.compression, agent.models[0]
    name = settings.context.engine
    own = settings.context.model_dump(include={name}).get(name)
    return ContextParts(
        enabled=compression.enabled,
        limits=Limits(
            context_length=model.context_length,
            threshold=compression.threshold,
            target_ratio=compression.target_ratio,
            protect_last_n=compression.protect_last_n,
        ),
        make_engine=resolve(
            name, settings.home, own if isinstance(own, dict) else settings.context.options
        ),
        summariser=build_summariser(settings, model),
        payback_requests=compression.payback_requests if compression.early else None,
    )


def build_summariser(settings: Settings, main: ChatModel) -> Summariser | None:
    """Return who writes summaries: the auxiliary model if one is set, else the main one.

    Returns:
        None where the model only plays a part (offline, replay): the extractor is used alone.

    Raises:
        SettingsError: The auxiliary model lacks its key.
    """
    block = settings.auxiliary.compression
    models = [main] if main.provider not in {"offline", "recorded"} else []
    if block.is_set:
        try:
            models.insert(0, build_model(_auxiliary(block, settings)))
        except ModelError as exc:
            raise SettingsError(f"auxiliary.compression: {exc}") from exc
    redact = Redactor(secret_values(settings)).text
    return Summariser(models, block.timeout_s, redact) if models else None


def _auxiliary(block: AuxiliaryModelSettings, settings: Settings) -> ModelSettings:
    """Return the auxiliary block completed by the main model's: its provider, its key."""
    main = settings.model
    same = block.provider in {"auto", "main", main.provider} and block.base_url is None
    return main.model_copy(
        update={
            "name": block.model or (main.name if same else None),
            "provider": main.provider if same else block.provider,
            "base_url": main.base_url if same else block.base_url,
            "api_key": block.api_key or (main.api_key if same else None),
            "api_keys": (),
            "context_length": None,
            "facts": block.facts,
            "extra_body": main.extra_body if same else {},
        }
    )


def build_adapters(settings: Settings, intake: Intake, chats: ChatHistory) -> list[Adapter]:
    """Return the adapters of all configured platforms, the web chat first.

    The web chat is always there: `parley chat` reaches it through the Unix socket also where
    `web.enabled` is false and the page is not served.
    """
    menu = list(commands.DESCRIPTIONS.items())
    web_adapter = import_module("adapters.web.adapter").WebAdapter
    max_bytes = settings.attachments.max_bytes
    adapters: list[Adapter] = [web_adapter(settings.web, intake, chats, max_file_bytes=max_bytes)]
    for platform in ("telegram", "discord", "slack"):
        for block in getattr(settings.platforms, platform):
            if block.is_on:
                module = import_module(f"adapters.{platform}.adapter")
                make = getattr(module, f"{platform.capitalize()}Adapter")
                adapters.append(make(block, intake, menu))
    return adapters


def prepare_home(home: Path) -> None:
    """Create PARLEY_HOME for its owner alone.

    Raises:
        SettingsError: It cannot be created.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise SettingsError(f"PARLEY_HOME {home} cannot be created: {exc.strerror}") from exc
