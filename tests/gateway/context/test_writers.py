"""How the models that write summaries stand, and what refusals have shown of their windows."""

from agent.context.summary_model import Summariser
from agent.models.base import ChatModel
from agent.settings import AuxiliaryModelSettings, AuxiliarySettings
from gateway.context.writers import LearnedWindows, WriterStanding, standing, summaries_text
from gateway.storage.database import Database
from gateway.storage.schema import model_window
from tests.support.scripted_model import ScriptedModel


def model(tokens: int, name: str = "local") -> ScriptedModel:
    return ScriptedModel([], name=name, context_length=tokens)


async def believing(database: Database, *models: ChatModel) -> LearnedWindows:
    """Return what a start makes of the models."""
    block = AuxiliaryModelSettings(model="local")
    windows = await LearnedWindows.of(database, AuxiliarySettings(compression=block))
    windows.apply(models)
    return windows


async def test_what_a_refusal_has_shown_outlives_a_restart(database: Database) -> None:
    """For all keys of the model, and for nobody else."""
    windows = await believing(database, model(128_000))
    await windows.learn(model(128_000), 8_192)
    await windows.learn(model(128_000), 8_000)
    first, second, other = model(128_000), model(128_000), model(128_000, "other")
    again = await believing(database, first, second, other)
    assert [each.context_length for each in (first, second, other)] == [8_000, 8_000, 128_000]
    assert (again.has_shown(first), again.has_shown(other)) == (True, False)


async def test_another_belief_is_not_lowered(database: Database) -> None:
    """Setting, provider or table say something else than when the prompt was refused."""
    windows = await believing(database, model(128_000))
    await windows.learn(model(128_000), 8_192)
    told = model(32_768)
    await believing(database, told)
    assert told.context_length == 32_768


async def test_what_is_shown_of_a_model_that_answers_is_not_kept(database: Database) -> None:
    """Its window is looked up at each start, and turns have an answer to its refusals."""
    windows = await believing(database, model(8_000))
    await windows.learn(model(100_000, "main"), 50_000)
    rows = await database.read(lambda conn: list(conn.execute(model_window.select())))
    assert rows == []
    assert windows.has_shown(model(1, "main"))


async def test_who_writes_stands_in_the_order_of_being_asked(database: Database) -> None:
    """With the window, who says so, and why somebody is not asked."""
    small, tiny = model(8_192), model(2_048, "tiny")
    claude = model(200_000, "claude-haiku-4-5")
    unknown = model(128_000, "unknown")
    windows = await believing(database, small)
    await windows.learn(small, 8_192)
    summariser = Summariser([small, tiny, claude, unknown], 10.0)
    summariser.rests.rest(small, 60)
    found = standing(summariser, windows)
    assert [each.name for each in found] == ["tiny", "claude-haiku-4-5", "unknown", "local"]
    assert [each.source for each in found] == ["told", "table", "guess", "refusal"]
    assert [each.is_wide_enough for each in found] == [False, True, True, True]
    assert [each.rests_s > 50 for each in found] == [False, False, False, True]


def test_it_is_told_in_words() -> None:
    """At the start and by `/status`."""
    one = WriterStanding("local", 8_192, "refusal", is_wide_enough=True, rests_s=12.4)
    two = WriterStanding("tiny", 2_048, "told", is_wide_enough=False, rests_s=0.0)
    assert summaries_text([one, two]) == (
        "local (8,192 tokens, shown by a refused prompt; rests for 12 s), then"
        " tiny (2,048 tokens, set or told by the provider; its window is too small),"
        " then the extractor"
    )
    assert summaries_text(standing(None, None)) == "the extractor alone"
