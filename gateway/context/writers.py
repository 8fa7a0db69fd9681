"""How the models stand that write summaries: their windows, who says so, whether they rest.

A window may be smaller than settings, provider and table say: a refused prompt shows it. That is
kept in the database for as long as these say the same as then; a server that was started anew with
a larger window tells so when it is asked.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.context.summary_model import LEAST_WINDOW_TOKENS, Summariser, named
from agent.models.base import ChatModel
from agent.models.catalog import context_length, find_facts
from agent.settings import AuxiliarySettings
from gateway.storage.conversation import compactions
from gateway.storage.conversation.compactions import ShownWindow
from gateway.storage.database import Database

WindowSource = Literal["refusal", "table", "guess", "told"]
"""Who says how large a window is: a refused prompt; the table of models; nobody, it is guessed; the
settings or the provider."""
_SAYS: Mapping[WindowSource, str] = {
    "refusal": "shown by a refused prompt",
    "table": "by the table",
    "guess": "a guess",
    "told": "set or told by the provider",
}


class LearnedWindows:
    """What refusals have shown of windows, across restarts."""

    def __init__(self, database: Database, known: Mapping[str, ShownWindow]) -> None:
        self._database = database
        self._known = known
        self._believed: dict[str, int] = {}
        self._shown: set[str] = set()

    @classmethod
    async def of(cls, database: Database, settings: AuxiliarySettings) -> "LearnedWindows":
        """Return what is kept; nothing is read where the models that answer write summaries."""
        block = settings.compression
        wanted = block.is_set or block.fallbacks
        return cls(database, await database.read(compactions.shown_windows) if wanted else {})

    def apply(self, models: Iterable[ChatModel]) -> None:
        """Lower the windows of models that are still believed to be what they were then."""
        for model in models:
            name = named(model)
            believed = self._believed.setdefault(name, model.context_length)
            shown = self._known.get(name)
            if shown is not None and shown.believed == believed > shown.context_length:
                model.context_length = shown.context_length
                self._shown.add(name)

    async def learn(self, model: ChatModel, window_tokens: int) -> None:
        """Keep what a refusal has shown of a model that writes summaries."""
        name = named(model)
        self._shown.add(name)
        if (believed := self._believed.get(name)) is not None:
            shown = ShownWindow(believed, window_tokens)
            await self._database.write(compactions.put_window, name, shown)

    def has_shown(self, model: ChatModel) -> bool:
        """Whether a refusal tells how large a model's window is."""
        return named(model) in self._shown


@dataclass(frozen=True, slots=True)
class WriterStanding:
    """One model that writes summaries, as it stands now.

    Attributes:
        window_tokens: How large its window is, as far as it is known.
        source: Who says so.
        rests_s: How long it is left alone yet; 0 where it is asked now.
    """

    name: str
    window_tokens: int
    source: WindowSource
    is_wide_enough: bool
    rests_s: float

    @property
    def text(self) -> str:
        """It for people."""
        state = f"rests for {self.rests_s:.0f} s" if self.rests_s else ""
        state = state if self.is_wide_enough else "its window is too small"
        notes = f"{self.window_tokens:,} tokens, {_SAYS[self.source]}"
        return f"{self.name} ({'; '.join(filter(None, (notes, state)))})"


def standing(
    summariser: Summariser | None, windows: LearnedWindows | None
) -> Sequence[WriterStanding]:
    """Return those that write summaries, in the order in which they are asked."""
    if summariser is None:
        return ()
    return [
        WriterStanding(
            model.label,
            summariser.window_of(model),
            _source(model, windows),
            summariser.window_of(model) >= LEAST_WINDOW_TOKENS,
            summariser.rests.left_s(model),
        )
        for model in summariser.rests.in_order(summariser.models)
    ]


def _source(model: ChatModel, windows: LearnedWindows | None) -> WindowSource:
    if windows is not None and windows.has_shown(model):
        return "refusal"
    facts = find_facts(model.name)
    if model.context_length != context_length(model.name):
        return "told"
    return "table" if facts is not None and facts.context_length is not None else "guess"


def summaries_text(writers: Sequence[WriterStanding]) -> str:
    """Return who writes summaries, for people; the extractor stands in for all of them."""
    if not writers:
        return "the extractor alone"
    return f"{', then '.join(each.text for each in writers)}, then the extractor"
