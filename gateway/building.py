"""Builds what the settings name: the agent, what keeps its window, its prompts, the platforms.

For `app.py`, which connects it, and for commands that show what a gateway would work with. A
platform or model that is not configured is not imported: the SDKs cost 40 to 75 MB each.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from adapters.base import Adapter, Intake
from agent.billing import CacheRules
from agent.context_engine import Limits
from agent.engines.registry import resolve
from agent.errors import ModelError
from agent.loop import Agent
from agent.models.base import ChatModel
from agent.models.factory import build_model
from agent.plugins.active import Plugins
from agent.recovery import RetryPolicy
from agent.redaction import Redactor
from agent.settings import AuxiliaryModelSettings, ModelSettings, ToolSettings
from agent.skills import SkillShelf
from agent.summariser import Summariser
from agent.tools.catalog import BUILTIN, builtin_tools
from agent.tools.gate import ApprovalRules
from agent.tools.registry import Tool
from gateway import commands
from gateway.access import Access
from gateway.chats import ChatHistory
from gateway.context import ContextParts
from gateway.errors import SettingsError
from gateway.modelline import Configured, models_of
from gateway.operatorfiles import SKILLS, OperatorFiles
from gateway.progress import ToolLines
from gateway.prompts import Prompts
from gateway.settings import Settings, secret_values
from gateway.usagetexts import MoneyRules

NO_PLUGINS = Plugins()


def build_agent(
    settings: Settings,
    line: Sequence[Configured],
    plugins: Plugins = NO_PLUGINS,
    foreign: Sequence[Tool] = (),
) -> Agent:
    """Return the agent: the configured models and the enabled tools.

    Args:
        settings: All of them.
        line: The models.
        plugins: Whose tools stand behind the others.
        foreign: Tools of MCP servers.

    Raises:
        SettingsError: A tool does not exist, or cannot be confined as the settings demand.
    """
    others = [*foreign, *plugins.tools({*BUILTIN, *(tool.name for tool in foreign)})]
    try:
        tools = builtin_tools(_offered(settings), others)
    except ValueError as exc:
        raise SettingsError(f"tools.enabled: {exc}") from exc
    return Agent(
        models=models_of(line),
        tools=tools,
        settings=settings.agent,
        output=settings.tools.output,
        retry=RetryPolicy(retry_for_s=settings.model.retry_for_s),
        max_output_tokens=settings.model.max_output_tokens,
        caching=settings.prompt_caching,
        approval=ApprovalRules(settings.tools.approval, Redactor(secret_values(settings))),
    )


def _offered(settings: Settings) -> ToolSettings:
    """Return the settings of the tools without `skill_view` where there is no skill to view."""
    enabled = settings.tools.enabled
    if "skill_manage" in enabled or _has_any(SkillShelf(settings.home / SKILLS)):
        return settings.tools
    kept = tuple(name for name in enabled if name != "skill_view")
    return settings.tools.model_copy(update={"enabled": kept})


def _has_any(shelf: SkillShelf) -> bool:
    try:
        return bool(shelf.names())
    except OSError:
        # What cannot be read counts as not there; `OperatorFiles` tells of it.
        return False


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
            "max_answer_chars": main.max_answer_chars,
        }
    )


def build_prompts(settings: Settings, plugins: Plugins = NO_PLUGINS) -> Prompts:
    """Return who writes the system prompts; the operator's files are read now."""
    files = OperatorFiles(settings.home, settings.agent.workspace)
    files.read()
    return Prompts(
        files, Access(settings.access), settings.sessions.timezone, external=plugins.external
    )


def build_tool_lines(settings: Settings) -> Callable[[], ToolLines] | None:
    """Return what makes the lines that tell which tools run, with no secret in them."""
    if settings.agent.progress == "off":
        return None
    return partial(ToolLines, Redactor(secret_values(settings)).text)


def build_money(settings: Settings, models: Sequence[ChatModel]) -> MoneyRules:
    """Return the prices of these models, and the budgets, as `/usage` tells them."""
    known = {model.name: model.facts.prices for model in models}
    return MoneyRules(
        prices={name: prices for name, prices in known.items() if prices is not None},
        rules={model.name: CacheRules.of(model.facts) for model in models},
        sender_daily_usd=settings.budget.sender_daily_usd,
        daily_usd=settings.budget.daily_usd,
        timezone=settings.sessions.timezone,
    )


def build_adapters(settings: Settings, intake: Intake, chats: ChatHistory) -> list[Adapter]:
    """Return the adapters of all configured platforms, the web chat first.

    The web chat is always there: `parley chat` reaches it through the Unix socket also where
    `web.enabled` is false and the page is not served.
    """
    menu = list(commands.DESCRIPTIONS.items())
    web_adapter = import_module("adapters.web.adapter").WebAdapter
    max_bytes = settings.attachments.max_bytes
    adapters: list[Adapter] = [
        web_adapter(settings.web, intake, chats, menu, max_file_bytes=max_bytes)
    ]
    for platform in ("telegram", "discord", "slack"):
        for block in getattr(settings.platforms, platform):
            if block.is_on:
                module = import_module(f"adapters.{platform}.adapter")
                make = getattr(module, f"{platform.capitalize()}Adapter")
                adapters.append(make(block, intake, menu))
    return adapters
