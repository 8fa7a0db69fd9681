"""What turns are made of: of the settings as they are now, and of what is there once.

A reload makes a new kit, and turns that begin from then on go by it. What is there once, whatever
the settings say, is `TurnParts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from adapters.base import Adapter
from agent.models.base import ChatModel
from agent.models.recovery import Rests
from agent.plugins.active import Plugins, TurnHooks
from agent.processes.sandbox import why_off
from agent.turn.state import Agent
from gateway.access.policy import Access, Quotas
from gateway.agent_ports.budgets import Budgets, refuse_unpriced
from gateway.agent_ports.files import Attachments, with_pictures_of
from gateway.agent_ports.questions import Inquiries
from gateway.agent_ports.search import Indexer
from gateway.agent_ports.tools import ToolFolders, Toolkit, Workspaces
from gateway.backup.pruning import Pruner
from gateway.commands.status_figures import status_facts
from gateway.context.memory import Recall
from gateway.context.prompts import Prompts
from gateway.context.summaries import Preparations
from gateway.context.window import ContextParts, with_engine_tools
from gateway.pipeline.delegation import Delegation
from gateway.pipeline.intake import IntakeRules
from gateway.pipeline.next_turn import NextTurn, TurnStarter
from gateway.pipeline.notices import TurnChats
from gateway.pipeline.reactions import ReactionQueue
from gateway.pipeline.turn import TurnRunner, TurnWork
from gateway.pipeline.worker import TurnKit
from gateway.settings.loading import redactor_of
from gateway.settings.tree import Settings
from gateway.signals import Stops, Wakeups
from gateway.storage.database import Database
from gateway.supervision.rotation import Rotation
from gateway.wiring import (
    build_context,
    build_money,
    build_prompts,
    build_readers,
    models_of,
)


@dataclass(frozen=True, slots=True)
class Beside:
    """What is done beside the path of a message: nothing on it waits for these parts."""

    preparations: Preparations
    files: Attachments
    inquiries: Inquiries
    indexer: Indexer
    pruner: Pruner
    recall: Recall
    reactions: ReactionQueue
    rotation: Rotation


@dataclass(frozen=True, slots=True)
class TurnParts:
    """What all turns share, whatever the settings say."""

    database: Database
    access: Access
    wakeups: Wakeups
    stops: Stops
    budgets: Budgets
    beside: Beside
    adapters: Mapping[tuple[str, str], Adapter]
    plugins: Plugins


@dataclass(frozen=True, slots=True)
class Mind:
    """What follows from the settings about answering: who answers, in which window, from what.

    Attributes:
        models: All of them, those that only write summaries or read behind the others.
        readers: Those that read for the memory: the same from the start to the end.
    """

    agent: Agent
    context: ContextParts
    prompts: Prompts
    models: tuple[ChatModel, ...]
    readers: tuple[ChatModel, ...] = ()

    @property
    def standing(self) -> tuple[Sequence[ChatModel], Sequence[ChatModel], Rests]:
        """All models, those that answer people, and which of them fail."""
        return self.models, self.agent.models, self.agent.recovery.rests


def build_mind(
    settings: Settings,
    agent: Agent,
    database: Database,
    plugins: Plugins,
    before: Mind | None = None,
) -> Mind:
    """Return the mind of these settings.

    Args:
        agent: The models and the enabled tools (`gateway.wiring.build_agent`).
        database: The pictures among its files can be shown to models.
        before: What the gateway has gone by until now; None at its start.

    Raises:
        SettingsError: There is a budget, and a model whose price is not known; at the start also: a
            model that reads for the memory lacks its key.
    """
    context = build_context(settings, agent)
    if before is not None:
        context = replace(context, views=before.context.views)
    agent = with_pictures_of(database, with_engine_tools(agent, context))
    readers = tuple(models_of(build_readers(settings))) if before is None else before.readers
    models = (*agent.models, *context.writers, *readers)
    # Once more: now with the models that write summaries, and those that read.
    refuse_unpriced(settings.budget, models)
    return Mind(agent, context, build_prompts(settings, plugins), models, readers)


def build_rules(settings: Settings, access: Access, mind: Mind) -> IntakeRules:
    """Return what decides about messages as they come in."""
    return IntakeRules(
        access,
        settings.queue,
        settings.sessions.groups,
        status_facts(mind.agent, mind.context, mind.prompts, why_off(settings.tools)),
        build_money(settings, mind.models),
        settings.attachments,
        Quotas(settings.quotas, settings.sessions.timezone),
    )


def build_turn_kit(settings: Settings, mind: Mind, shared: TurnParts) -> TurnKit:
    """Return what turns are begun and run with; nothing in it changes later."""
    agent, context, prompts, plugins = mind.agent, mind.context, mind.prompts, shared.plugins
    has_hooks = plugins.loaded or plugins.missing_guards
    toolkit = Toolkit(
        shared.database,
        shared.access,
        shared.beside.files,
        shared.beside.inquiries,
        shared.beside.indexer,
        hooks=lambda: TurnHooks(plugins, agent.tools.restricted) if has_hooks else None,
        folders=ToolFolders(
            prompts.files.shelf, Workspaces(settings.tools.workspace, settings.home)
        ),
    )
    delegation = Delegation(shared.database, context, shared.budgets, toolkit)
    runner = TurnRunner(
        shared.database,
        TurnChats(shared.database, shared.adapters, shared.wakeups, redactor_of(settings)),
        TurnWork(shared.database, agent, context, toolkit, delegation, shared.access),
        shared.stops,
        shared.budgets,
        shared.beside.preparations,
        shared.beside.recall,
        settings.queue.max_attempts,
    )
    next_turn = NextTurn(
        settings.queue,
        settings.sessions,
        prompts.bases(agent),
        {account: each.render for account, each in shared.adapters.items()},
    )
    starter = TurnStarter(
        shared.database,
        next_turn,
        agent.settings,
        prompts.files,
        shared.beside.recall,
        shared.stops,
        shared.wakeups,
    )
    return TurnKit(starter, runner, settings.queue)
