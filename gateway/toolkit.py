"""What the tools of a turn may use (step 6): the gateway's side of `agent.tools.services`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from agent.context_engine import ContextEngine
from agent.settings import MemorySettings
from agent.skills import SkillShelf
from agent.tools.registry import ToolContext
from agent.tools.services import Hooks
from gateway.access import Access
from gateway.attachments import Attachments
from gateway.indexing import Indexer
from gateway.inquiries import Inquiries
from gateway.journal import Reader
from gateway.notebook import TurnNotebook
from gateway.searching import ConversationSearcher
from gateway.standing import standing_of
from gateway.storage.engine import Database
from gateway.storage.turns import Turn
from gateway.workspaces import Workspaces


@dataclass(frozen=True, slots=True)
class Toolkit:
    """Makes the tool context of each turn; each part of it is bound to the turn.

    Attributes:
        memory: How much is noted.
        hooks: Returns what plugins do around the calls of a turn that begins.
        skills: The operator's.
        workspaces: Where the files of conversations lie; None: tools have none.
    """

    database: Database
    access: Access
    files: Attachments
    inquiries: Inquiries
    indexer: Indexer
    memory: MemorySettings = field(default_factory=MemorySettings)
    hooks: Callable[[], Hooks | None] = lambda: None
    skills: SkillShelf | None = None
    workspaces: Workspaces | None = None

    async def of(self, turn: Turn, engine: ContextEngine) -> ToolContext:
        """Return what the tools of a turn may use."""
        conversation = turn.lease.conversation
        standing = await self.database.read(standing_of, self.access, turn)
        scope, may_act = standing.scope, standing.may_act
        return ToolContext(
            conversation=str(conversation),
            reader=Reader(self.database, conversation),
            clock=_now,
            engine=engine,
            files=self.files.files(turn),
            may_act=may_act,
            by_owners=standing.by_owners,
            people=self.inquiries.people(turn),
            notebook=TurnNotebook(self.database, turn, self.memory, scope, may_act),
            searcher=ConversationSearcher(
                self.database, self.indexer, conversation, turn.begins_at
            ),
            hooks=self.hooks(),
            scope=scope,
            skills=self.skills,
            workspace=self.workspaces.of(conversation) if self.workspaces else None,
        )


def _now() -> datetime:
    return datetime.now(UTC)
