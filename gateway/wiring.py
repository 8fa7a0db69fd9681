"""Builds the configured objects: models, agent, context, prompts, adapters, MCP tools.

`app.py` connects the result; commands use it to show a gateway's configuration. Unconfigured
platforms, models and MCP servers are not imported, since each SDK costs 40 to 75 MB. Each key of a
model becomes a separate model, so that recovery can switch between them.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from zoneinfo import ZoneInfo

import structlog

from adapters.base import ALONE, Adapter, Intake, Renderer, Share
from adapters.door import Door
from adapters.errors import AdapterError
from adapters.registry import BUILT_IN, Host, PlatformSection, account_of, build, load, renderer
from agent.context.summary_model import Summariser
from agent.context_engine import Limits
from agent.errors import ModelError, SecretUnreadable
from agent.models.base import ChatModel, checked_key
from agent.models.catalog import PROVIDERS
from agent.models.factory import build_models, resolve_provider
from agent.models.recovery import Recovery, RetryPolicy
from agent.money.cache_simulator import CacheRules
from agent.network import UnusableEnvironment
from agent.plugins.engines import EngineFactory, resolve
from agent.plugins.loading import load_plugins
from agent.plugins.registry import Plugins
from agent.processes.sandbox import why_off
from agent.prompt.skills import SkillShelf
from agent.settings import AuxiliaryModelSettings, ModelSettings, ToolSettings
from agent.tools import policy
from agent.tools.catalog import BUILTIN, builtin_tools
from agent.tools.gate import ApprovalRules
from agent.tools.registry import NO_SERVERS, ServedTools, Tool
from agent.turn.request import Agent
from gateway.access.oidc import identity_provider
from gateway.access.policy import Access, Owners, Quotas
from gateway.agent_ports.budgets import Budgets, refuse_unpriced
from gateway.agent_ports.files import with_pictures_of
from gateway.agent_ports.search import Embedder
from gateway.agent_ports.tools import Workspaces, with_walls
from gateway.commands import registry
from gateway.commands.registry import MoneyRules
from gateway.commands.status import status_facts
from gateway.context.memory import MemoryReader
from gateway.context.parts import Mind
from gateway.context.prompts import SKILLS, OperatorFiles, Prompts
from gateway.context.window import ContextParts, with_engine_tools
from gateway.errors import SettingsError
from gateway.findings.report import Examination
from gateway.findings.telling import Telling
from gateway.findings.watch import AlertWatch
from gateway.findings.webhook import AlertWebhook
from gateway.http.server import ChatHistory
from gateway.logging.setup import log_path, refuse_unwritable_log
from gateway.pipeline.admission import IntakeRules
from gateway.replicas.other_replicas import SharedChats
from gateway.replicas.replica import AccountLeases, Replica, tell_of
from gateway.settings.loading import redactor_of
from gateway.settings.tree import Settings
from gateway.signals import Wakeups
from gateway.storage.database import Database, DatabaseServer, location_of
from gateway.storage.people.mcp import UNKNOWN, McpRecord
from gateway.storage.queue import blame, leases
from gateway.storage.queue.blame import Death
from gateway.supervision.accounts import UnbuiltAdapter
from gateway.supervision.credentials import INSIDE, Configured

log = structlog.get_logger()

SIDE_TASK_S = 60.0
"""Time limit for all calls of one summary or one memory reading, in seconds."""
NO_PLUGINS = Plugins()


def build_line(settings: Settings) -> list[Configured]:
    """Return the main model and its fallbacks, in order; no network call is made.

    Raises:
        SettingsError: A model lacks its key, or a block is unusable.
    """
    named = {"model": settings.model}
    named |= {f"fallbacks.{number}": block for number, block in enumerate(settings.fallbacks)}
    return [_configured(place, block) for place, block in named.items()]


def models_of(line: Sequence[Configured]) -> list[ChatModel]:
    """Return all models, one per key, in the order in which they are tried."""
    return [model for block in line for model in block.models]


def _configured(place: str, block: ModelSettings) -> Configured:
    try:
        return Configured(block, build_models(block), place)
    except ModelError as exc:
        # Models name their settings `model.…` regardless of the actual path.
        raise SettingsError(f"{place}: {str(exc).replace('model.', f'{place}.')}") from exc


def build_agent(
    settings: Settings,
    line: Sequence[Configured],
    plugins: Plugins = NO_PLUGINS,
    foreign: Sequence[Tool] = (),
) -> Agent:
    """Return the agent: the configured models, and the enabled, MCP (`foreign`) and plugin tools.

    Raises:
        SettingsError: A tool does not exist or cannot be confined as configured.
    """
    others = [*foreign, *plugins.tools({*BUILTIN, *(tool.name for tool in foreign)})]
    try:
        tools = builtin_tools(_offered(settings), others)
    except ValueError as exc:
        raise SettingsError(f"tools.enabled: {exc}") from exc
    if built_in := {*BUILTIN} & {*settings.tools.policy.own_records}:
        raise SettingsError(f"tools.policy.own_records: {min(built_in)} acts on more than a record")
    approval = ApprovalRules(
        policy.table_of_settings(settings.tools),
        settings.tools.fetch.hosts,
        redactor_of(settings),
        frozenset(settings.tools.policy.own_records),
    )
    return Agent(
        models=models_of(line),
        tools=tools,
        settings=settings.agent,
        approval=approval,
        recovery=Recovery(RetryPolicy(retry_for_s=settings.model.retry_for_s)),
        max_output_tokens=settings.model.max_output_tokens,
        caching=settings.prompt_caching,
    )


def _offered(settings: Settings) -> ToolSettings:
    """Return the tool settings, without `skill_view` if no skills exist."""
    enabled = settings.tools.enabled
    try:
        has_skills = bool(SkillShelf(settings.home / SKILLS).names())
    except OSError:
        # `OperatorFiles` reports it.
        has_skills = False
    if "skill_manage" in enabled or has_skills:
        return settings.tools
    kept = tuple(name for name in enabled if name != "skill_view")
    return settings.tools.model_copy(update={"enabled": kept})


def build_context(
    settings: Settings, agent: Agent, writers: Sequence[Configured] | None = None
) -> ContextParts:
    """Build the context parts: limits, engine, summary models.

    Args:
        writers: Result of `build_writers`; None to build them.
    """
    compression, model = settings.compression, agent.models[0]
    writers = build_writers(settings) if writers is None else writers
    return ContextParts(
        enabled=compression.enabled,
        limits=Limits(
            context_length=model.context_length,
            threshold=compression.threshold,
            target_ratio=compression.target_ratio,
            protect_last_n=compression.protect_last_n,
        ),
        make_engine=choose_engine(settings),
        summariser=build_summariser(settings, agent, writers),
    )


def choose_engine(settings: Settings) -> EngineFactory:
    """Load the configured context engine, or the built-in one if that fails."""
    name = settings.context.engine
    section = settings.context.model_dump(exclude={"engine"}).get(name)
    return resolve(name, settings.home, settings.plugins.options_of(name), section)


def build_writers(settings: Settings) -> list[Configured]:
    """Return the configured summary-only model, if any; makes no network call.

    Raises:
        SettingsError: It lacks its key, or the block is unusable.
    """
    return _auxiliaries(settings, settings.auxiliary.compression, "auxiliary.compression")


def _auxiliaries(settings: Settings, block: AuxiliaryModelSettings, name: str) -> list[Configured]:
    return [_configured(name, _auxiliary(block, settings))] if block.is_set else []


def build_summariser(
    settings: Settings, agent: Agent, writers: Sequence[Configured]
) -> Summariser | None:
    """Return the summariser: the auxiliary model first, then the answering models.

    None if all are inside Parley (offline, replay): then only the extractor is used.
    """
    answering = (model for model in agent.models if model.provider not in INSIDE)
    if not (models := [*models_of(writers), *answering]):
        return None
    redact = redactor_of(settings).text
    return Summariser(models, SIDE_TASK_S, redact, rests=agent.recovery.rests)


def build_readers(settings: Settings) -> list[Configured]:
    """Return the configured memory-reading model, if any, like `build_writers`."""
    return _auxiliaries(settings, settings.auxiliary.memory, "auxiliary.memory")


def build_memory_reader(
    settings: Settings, mind: Mind, budgets: Budgets, owners: Owners, wakeups: Wakeups
) -> MemoryReader | None:
    """Return the notebook's reader, or None without a configured model."""
    if not mind.readers:
        return None
    redact, rests = redactor_of(settings).text, mind.agent.recovery.rests
    asked = Summariser(mind.readers, SIDE_TASK_S, redact, rests=rests)
    return MemoryReader(budgets.database, budgets, asked, owners, wakeups)


def build_embedder(settings: Settings, database: Database) -> Embedder | None:
    """Return the embedder for searches, or None without a configured model."""
    model = embedding_model(settings)
    return None if model is None else Embedder(database, model, redactor_of(settings))


def embedding_model(settings: Settings) -> ModelSettings | None:
    """Return the embedding model with server and key; None if not configured.

    Raises:
        SettingsError: It has no server with `/embeddings`, or its key is unusable.
    """
    if settings.auxiliary.embeddings.model is None:
        return None
    model = _auxiliary(settings.auxiliary.embeddings, settings)
    facts = PROVIDERS.get(resolve_provider(model))
    if facts is None or facts.api != "openai":
        text = "the server of `model` has no /embeddings, name one"
        raise SettingsError(f"auxiliary.embeddings.base_url: {text}")
    try:
        checked_key(model.api_key.get_secret_value() if model.api_key else "")
    except SecretUnreadable as exc:
        raise SettingsError(f"auxiliary.embeddings.api_key: it {exc}") from exc
    return model


def _auxiliary(block: AuxiliaryModelSettings, settings: Settings) -> ModelSettings:
    """Complete an auxiliary block with the main model's provider and keys."""
    main = settings.model
    # A key must not be sent to another provider or address.
    same = block.provider in {"auto", "main", main.provider} and block.base_url is None
    own_keys = same and not block.has_key
    return main.model_copy(
        update={
            "name": block.model or (main.name if same else None),
            "provider": main.provider if same else block.provider,
            "base_url": main.base_url if same else block.base_url,
            "api": main.api if same else "auto",
            "api_key": main.api_key if own_keys else block.api_key,
            "api_keys": main.api_keys if own_keys else block.api_keys,
            "context_length": block.context_length,
            "facts": block.facts,
            "extra_body": main.extra_body if same else {},
        }
    )


def build_prompts(settings: Settings, plugins: Plugins = NO_PLUGINS) -> Prompts:
    """Return the writer of system prompts, reading the operator's files now."""
    files = OperatorFiles(settings.home, settings.agent.workspace)
    files.read()
    return Prompts(
        files,
        Access(settings.access, settings.web),
        settings.sessions.timezone,
        external=plugins.external,
    )


def build_mind(
    settings: Settings,
    agent: Agent,
    database: Database,
    plugins: Plugins,
    writers: Sequence[Configured] | None = None,
    before: Mind | None = None,
) -> Mind:
    """Build the mind for these settings.

    Args:
        writers: Summary-only models; None to build them.
        before: The previous mind; None at the start.

    Raises:
        SettingsError: A budget is set but a model has no known price; at the start also if the
            memory-reading model lacks its key.
    """
    context = build_context(settings, agent, writers)
    if before is not None:
        context = replace(context, views=before.context.views)
    agent = with_pictures_of(database, with_engine_tools(agent, context))
    readers = tuple(models_of(build_readers(settings))) if before is None else before.readers
    models = (*agent.models, *context.writers, *readers)
    # Again, now including summary and memory models.
    refuse_unpriced(settings.budget, models)
    return Mind(agent, context, build_prompts(settings, plugins), models, readers)


def build_rules(settings: Settings, access: Access, mind: Mind) -> IntakeRules:
    """Return the rules for incoming messages."""
    known = {model.name: model.facts.prices for model in mind.models}
    money = MoneyRules(
        prices={name: prices for name, prices in known.items() if prices is not None},
        rules={model.name: CacheRules.of(model.facts) for model in mind.models},
        sender_daily_usd=settings.budget.sender_daily_usd,
        daily_usd=settings.budget.daily_usd,
        timezone=settings.sessions.timezone,
    )
    return IntakeRules(
        access,
        settings.queue,
        settings.sessions.groups,
        status_facts(mind.agent, mind.context, mind.prompts, why_off(settings.tools)),
        money,
        settings.attachments,
        Quotas(settings.quotas, settings.sessions.timezone),
    )


def build_alerts(
    current: Callable[[], Settings], examination: Examination, wakeups: Wakeups, owners: Owners
) -> AlertWatch | None:
    """Return the owners' alerts, or None if switched off in the settings (`current`)."""
    alerts = current().alerts
    if not alerts.enabled:
        return None

    def telling() -> Telling:
        now = current()
        return Telling(now.alerts, owners, ZoneInfo(now.sessions.timezone), redactor_of(now).text)

    webhook = AlertWebhook(examination.vitals.database, telling) if alerts.webhook else None
    return AlertWatch(examination, telling, wakeups, webhook)


@dataclass(frozen=True, slots=True)
class Accounts:
    """A gateway's accounts, before their adapters exist.

    Attributes:
        renderers: Renderers by account, which the intake needs before adapters exist.
        connect: Returns the adapters, connected to the intake.
        share: This process's share of the platform limits.
        chats: Chats served by several replicas; None on SQLite.
        make: Builds one account's adapter; None if accounts cannot be restarted.
    """

    renderers: Mapping[tuple[str, str], Renderer]
    connect: Callable[[Intake, ChatHistory, Door], Sequence[Adapter]]
    share: Share = field(default_factory=Share)
    chats: SharedChats | None = None
    make: Callable[[Intake, ChatHistory, Door, str, PlatformSection], Adapter] | None = None


def build_accounts(settings: Settings) -> Accounts:
    """Return all configured accounts, the web chat first.

    The web chat always exists: `parley chat` uses it through the Unix socket even if `web.enabled`
    is false.
    """
    blocks = _blocks(settings)
    is_shared = isinstance(location_of(settings), DatabaseServer)
    share, shared = Share(), SharedChats() if is_shared else None

    renderers = {(name, account_of(block)): renderer(name, block) for name, block in blocks}

    def make(
        intake: Intake, chats: ChatHistory, door: Door, platform: str, block: PlatformSection
    ) -> Adapter:
        max_bytes = settings.attachments.max_bytes
        host = Host(intake, chats, registry.menu(), max_bytes, door, share, shared or ALONE)
        return build(platform, block, host)

    def connect(intake: Intake, chats: ChatHistory, door: Door) -> list[Adapter]:
        adapters: list[Adapter] = []
        for platform, block in blocks:
            try:
                adapters.append(make(intake, chats, door, platform, block))
            except Exception as exc:
                if platform == BUILT_IN:
                    raise
                # A broken account must not affect the others.
                account = account_of(block)
                is_clear = isinstance(exc, AdapterError | UnusableEnvironment)
                reason = str(exc) if is_clear else "it cannot be started; the log says why"
                if not is_clear:
                    log.exception("adapter_failed", adapter=f"{platform}:{account}")
                shown = renderers[platform, account]
                adapters.append(UnbuiltAdapter(platform, account, shown, reason))
        return adapters

    return Accounts(renderers, connect, share, shared, make)


def load_adapters(settings: Settings) -> None:
    """Import the configured accounts' adapters before `build_accounts` needs them."""
    for platform, _ in _blocks(settings):
        load(platform)


def _blocks(settings: Settings) -> list[tuple[str, PlatformSection]]:
    """Return (platform, settings) of each active account, the web chat first."""
    return [(BUILT_IN, settings.web), *settings.platforms.on()]


def accounts_of(*adapters: Adapter) -> Accounts:
    """Return accounts for existing adapters that receive nothing."""
    renderers = {(each.platform, each.account): each.render for each in adapters}
    return Accounts(renderers, lambda _intake, _chats, _door: adapters)


def tried(settings: Settings) -> tuple[list[str], list[str]]:
    """Load plugins and build everything like a start; only for commands.

    Returns:
        Lines about why a gateway would not start, and about skipped plugins and engines.
    """
    problems: list[str] = []
    with structlog.testing.capture_logs() as logged:
        plugins = load_plugins(settings.plugins, settings.home)
        choose_engine(settings)
        try:
            refuse_unusable(settings, plugins)
        except SettingsError as exc:
            problems = str(exc).splitlines()
    engines = [each for each in logged if each["event"] == "engine_unavailable"]
    lines = [f"engine {each['engine']}: {each['reason']}" for each in engines]
    return problems, [*plugins.left_out(), *lines]


def refuse_unusable(settings: Settings, plugins: Plugins = NO_PLUGINS) -> None:
    """Build the parts of a start without network calls; call outside an event loop.

    Raises:
        SettingsError: A gateway would not start with these settings.
    """
    asyncio.run(_build(settings, plugins))
    identity_provider(settings.web)
    Workspaces(settings.tools.workspace, settings.home)
    refuse_unwritable_log(log_path(settings.logging, settings.home))


async def _build(settings: Settings, plugins: Plugins) -> None:
    line = build_line(settings)
    models = models_of([*line, *build_writers(settings), *build_readers(settings)])
    try:
        refuse_unpriced(settings.budget, models)
        build_agent(settings, line, plugins)
        embedding_model(settings)
    finally:
        for model in models:
            await model.close()


def open_tools(
    settings: Settings, record: McpRecord = UNKNOWN
) -> AbstractAsyncContextManager[ServedTools]:
    """Connect to the enabled servers within `start_timeout_s`, and yield their tools."""
    if not any(server.enabled for server in settings.tools.mcp.values()):
        return nullcontext(NO_SERVERS)
    # The SDK's import takes longer than the rest of the agent, and most gateways have no server.
    from agent.tools.mcp.servers import mcp_tools  # noqa: PLC0415

    servers = with_walls(settings, record.confined)
    return mcp_tools(servers, settings.home, settings.tools.sandbox, record.agreed)


async def registered(
    database: Database, place: str, death: Death, accounts: AccountLeases, share: Share
) -> Replica:
    """Register this process and make the previous one's unfinished work ready.

    Args:
        place: Identifies where it runs; at most one process per place.
        death: How the previous process at this place ended.
    """
    if database.server is not None:
        # Imported here, because its driver costs memory and time that SQLite does not need.
        from gateway.replicas.shared_replica import SharedReplica  # noqa: PLC0415

        return await SharedReplica.join(database, database.server, place, death, accounts, share)
    replica_id = await database.write(leases.register, f"pid {os.getpid()}")
    inherited = await database.write(blame.take_over, replica_id, death)
    tell_of(inherited)
    return Replica(database, replica_id, inherited.trials)
