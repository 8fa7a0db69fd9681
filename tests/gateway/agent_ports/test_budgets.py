"""Budgets: what a day may cost, whoever spends it, calls in flight included."""

import asyncio
from contextlib import closing
from datetime import date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection
from structlog.testing import capture_logs

from agent.errors import SpendLimitReached
from agent.messages import Usage
from agent.models.catalog import ModelFacts
from gateway.agent_ports.budgets import Budgets, day_of, refuse_unpriced, today
from gateway.errors import SettingsError
from gateway.settings.tree import BudgetSettings
from gateway.storage.database import Database
from gateway.storage.migrations import open_database
from gateway.storage.reports import spending
from gateway.storage.schema import ledger as ledger_table
from tests.support.scripted_model import ScriptedModel
from tests.support.storage import admit, copy_database, inbound, model_call

BERLIN = ZoneInfo("Europe/Berlin")
ADA, BOB = "telegram:42", "telegram:43"


def budgets_of(database: Database, sender_daily_usd: float | None = None, **more: Any) -> Budgets:
    limits = BudgetSettings(sender_daily_usd=sender_daily_usd, **more)
    return Budgets(database, limits, "Europe/Berlin")


async def spend(
    database: Database, sender: str, usd: float | None, at: float | None = None
) -> None:
    """Book a call that is over: now, or at another time."""
    conversation, _ = await database.write(admit, inbound())

    def book(conn: Connection) -> None:
        call = model_call(Usage(1), cost_usd=usd)
        spending.book(conn, conversation, None, sender, [call])
        if at is not None:
            conn.execute(ledger_table.update().values(at=at))

    await database.write(book)


async def is_allowed(budgets: Budgets, sender: str, forecast_usd: float | None) -> bool:
    """Make a call of no other cost."""
    try:
        await call(budgets, sender, forecast_usd)
    except SpendLimitReached:
        return False
    return True


async def refused(budgets: Budgets, sender: str, forecast_usd: float | None) -> SpendLimitReached:
    """Return what a call is refused with."""
    with pytest.raises(SpendLimitReached) as caught:
        await call(budgets, sender, forecast_usd)
    return caught.value


async def call(budgets: Budgets, sender: str, forecast_usd: float | None) -> None:
    with closing(budgets.for_sender(sender)) as turn:
        async with turn.call(forecast_usd):
            pass


async def test_a_call_that_fits_is_allowed(database: Database) -> None:
    """Down to the last cent, whatever binary fractions make of it."""
    for _ in range(3):
        await spend(database, ADA, 0.1)
    budgets = budgets_of(database, 0.4)
    assert await is_allowed(budgets, ADA, 0.1)
    assert (await refused(budgets, ADA, 0.11)).limit_usd == 0.4


async def test_a_refusal_says_whose_budget_and_until_when(database: Database) -> None:
    """The next midnight in the zone of the settings."""
    await spend(database, ADA, 2.0)
    limit = await refused(budgets_of(database, 2.0), ADA, 0.01)
    assert (limit.scope, limit.limit_usd) == ("sender", 2.0)
    assert limit.until == today(BERLIN).end
    assert f"{limit.until:%H:%M} {limit.until.tzinfo}" == "00:00 Europe/Berlin"


async def test_a_sender_does_not_use_up_anothers_budget(database: Database) -> None:
    """But the one of all."""
    await spend(database, ADA, 2.0)
    assert await is_allowed(budgets_of(database, 1.0), BOB, 0.5)
    limit = await refused(budgets_of(database, 1.0, daily_usd=2.2), BOB, 0.5)
    assert (limit.scope, limit.limit_usd) == ("all", 2.2)


async def test_the_senders_own_budget_is_named_first(database: Database) -> None:
    """Where both are used up: it says more."""
    await spend(database, ADA, 2.0)
    assert (await refused(budgets_of(database, 1.0, daily_usd=1.0), ADA, 0.1)).scope == "sender"


async def test_yesterday_does_not_count(database: Database) -> None:
    """A day begins at midnight, to the second."""
    midnight = today(BERLIN).start.timestamp()
    await spend(database, ADA, 5.0, at=midnight - 1)
    assert await is_allowed(budgets_of(database, 1.0), ADA, 1.0)
    await spend(database, ADA, 5.0, at=midnight)
    await refused(budgets_of(database, 1.0), ADA, 1.0)


async def test_each_replica_holds_for_itself_alone(
    database: Database, database_engine: str
) -> None:
    """Each may start what is left once: replicas together at most so many times that."""
    await spend(database, ADA, 0.9)
    replicas = [budgets_of(database, 1.0, daily_usd=1.0) for _ in range(2)]
    turns = [replica.for_sender(ADA) for replica in replicas]
    for turn in turns:
        async with turn.call(0.06):
            pass
    for replica in replicas:
        await refused(replica, ADA, 0.06)
    for turn in turns:
        await spend(database, ADA, 0.06)
        turn.close()
    assert 0.1 < 2 * 0.06 <= len(replicas) * 0.1
    for replica in replicas:
        await refused(replica, ADA, 0.000_001)


async def test_a_call_in_flight_is_held(database: Database) -> None:
    """Until it is booked: by the turn's next call, or by its end."""
    budgets = budgets_of(database, 1.0, daily_usd=1.5)
    turn = budgets.for_sender(ADA)
    async with turn.call(0.8):
        assert (await refused(budgets, ADA, 0.3)).scope == "sender"
        assert (await refused(budgets, BOB, 0.8)).scope == "all"
        assert await is_allowed(budgets, BOB, 0.7)
    await refused(budgets, ADA, 0.3)
    async with turn.call(1.0):
        await refused(budgets, ADA, 0.1)
    turn.close()
    assert await is_allowed(budgets, ADA, 1.0)


async def test_a_call_that_fails_is_not_held_any_more(database: Database) -> None:
    """The error goes on as it is."""
    budgets = budgets_of(database, 1.0)
    with pytest.raises(ConnectionError):
        async with budgets.for_sender(ADA).call(1.0):
            raise ConnectionError
    assert await is_allowed(budgets, ADA, 1.0)


async def test_a_cancelled_call_is_not_held_any_more(database: Database) -> None:
    """As when a user stops the turn."""
    budgets, begun = budgets_of(database, 1.0), asyncio.Event()

    async def calling() -> None:
        async with budgets.for_sender(ADA).call(1.0):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(calling())
    await begun.wait()
    task.cancel()
    await asyncio.wait({task})
    assert await is_allowed(budgets, ADA, 1.0)


async def test_a_call_of_unknown_cost_needs_something_left(database: Database) -> None:
    """It holds nothing."""
    budgets = budgets_of(database, 1.0)
    async with budgets.for_sender(ADA).call(None):
        assert await is_allowed(budgets, ADA, 1.0)
    await spend(database, ADA, 1.0)
    await refused(budgets, ADA, None)


@pytest.mark.parametrize("limit_usd", [0.0, 1.0])
async def test_a_call_without_cost_is_always_allowed(database: Database, limit_usd: float) -> None:
    """Nobody sends a bill for it."""
    await spend(database, ADA, 3.0)
    assert await is_allowed(budgets_of(database, limit_usd, daily_usd=limit_usd), ADA, 0.0)


async def test_a_budget_of_nothing_refuses_whatever_costs(database: Database) -> None:
    """Also the first call of the day."""
    budgets = budgets_of(database, 0.0)
    await refused(budgets, ADA, 1e-6)
    await refused(budgets, ADA, None)


async def test_calls_of_unknown_price_are_not_counted(database: Database) -> None:
    """What they cost is not known; a start with a budget refuses such models."""
    await spend(database, ADA, None)
    assert await is_allowed(budgets_of(database, 1.0), ADA, 1.0)


async def test_without_a_budget_nothing_is_asked(database: Database) -> None:
    """Not even a closed database is noticed."""
    budgets = budgets_of(database)
    await database.close()
    assert await is_allowed(budgets, ADA, 1_000.0)
    assert not await budgets.exhausted(ADA)


async def test_work_in_the_background_needs_something_left(database: Database) -> None:
    """Of the sender's budget and of the one for all; what is held is spent as good as."""
    budgets = budgets_of(database, 1.0, daily_usd=1.5)
    assert not await budgets.exhausted(ADA)
    with closing(budgets.for_sender(ADA)) as ada, closing(budgets.for_sender(BOB)) as bob:
        async with ada.call(1.0):
            assert await budgets.exhausted(ADA)
            assert not await budgets.exhausted(BOB)
        async with bob.call(0.5):
            assert await budgets.exhausted("telegram:44")
    assert not await budgets.exhausted(ADA)


async def test_a_used_up_budget_is_logged_once_a_day(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each budget, not for each message."""
    tomorrow = day_of(today(BERLIN).end.date(), BERLIN)
    with capture_logs() as lines:
        budgets = budgets_of(database, 0.0, daily_usd=5.0)
        for sender in (ADA, BOB, ADA, ADA):
            await refused(budgets, sender, 0.1)
        monkeypatch.setattr("gateway.agent_ports.budgets.today", lambda _: tomorrow)
        await refused(budgets, ADA, 0.1)
    assert [line["sender"] for line in lines] == [ADA, BOB, ADA]
    assert {line["event"] for line in lines} == {"spend_limit_reached"}
    assert {line["log_level"] for line in lines} == {"warning"}
    assert lines[2]["until"] == tomorrow.end.isoformat()


async def test_a_call_that_ends_while_the_books_are_read_is_counted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be neither in what was read nor held any more: the books are read again."""
    budgets, reads = budgets_of(database, 1.0), 0
    first = budgets.for_sender(ADA)
    read = database.read

    async def slow_read(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        found = await read(*args)
        if reads == 1:
            await spend(database, ADA, 0.8)
            first.close()
        return found

    async with first.call(0.8):
        pass
    monkeypatch.setattr(database, "read", slow_read)
    await refused(budgets, ADA, 0.5)
    assert reads == 2


class Planned(NamedTuple):
    """A call of a property test: what it is forecast to cost, and costs beyond that."""

    sender: str
    forecast_usd: float
    output_usd: float


_USD = st.floats(0.001, 1.0)
_CALLS = st.lists(
    st.builds(Planned, st.sampled_from([ADA, BOB]), _USD, _USD), min_size=2, max_size=12
)


@pytest.mark.thorough
@settings(max_examples=20)
@given(calls=_CALLS, each_usd=_USD, all_usd=_USD, at_once=st.integers(1, 6))
def test_only_the_outputs_overshoot(
    database_template: Path, calls: list[Planned], each_usd: float, all_usd: float, at_once: int
) -> None:
    """However many calls run side by side: what they cost at least stays within every budget."""
    with TemporaryDirectory() as folder:
        file = copy_database(database_template, Path(folder) / "parley.db")
        made = asyncio.run(_make(file, calls, (each_usd, all_usd), at_once))
    assert sum(call.forecast_usd for call in made) <= all_usd + 1e-6
    for sender in (ADA, BOB):
        assert sum(it.forecast_usd for it in made if it.sender == sender) <= each_usd + 1e-6


async def _make(
    file: Path, calls: list[Planned], limits: tuple[float, float], at_once: int
) -> list[Planned]:
    """Make calls side by side; returns those that were allowed."""
    places = asyncio.Semaphore(at_once)
    async with open_database(file) as database:
        budgets = budgets_of(database, limits[0], daily_usd=limits[1])

        async def make(call: Planned) -> bool:
            async with places:
                return await _make_one(database, budgets, call)

        made = await asyncio.gather(*map(make, calls))
    return [call for call, was_made in zip(calls, made, strict=True) if was_made]


async def _make_one(database: Database, budgets: Budgets, call: Planned) -> bool:
    try:
        with closing(budgets.for_sender(call.sender)) as turn:
            async with turn.call(call.forecast_usd):
                await asyncio.sleep(0)
            await spend(database, call.sender, call.forecast_usd + call.output_usd)
    except SpendLimitReached:
        return False
    return True


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-07-01", 24), ("2026-03-29", 23), ("2026-10-25", 25)]
)
def test_a_day_is_as_long_as_the_clock_says(day: str, hours: int) -> None:
    """From midnight to midnight, also when the clocks are changed."""
    start, end = day_of(date.fromisoformat(day), BERLIN)
    assert timedelta(seconds=end.timestamp() - start.timestamp()) == timedelta(hours=hours)
    assert f"{start:%H:%M}" == f"{end:%H:%M}" == "00:00"


def test_today_is_around_now() -> None:
    """Wherever that is."""
    for name in ("UTC", "Pacific/Kiritimati", "Pacific/Niue"):
        start, end = today(ZoneInfo(name))
        assert start <= datetime.now(ZoneInfo(name)) < end


def model(name: str, facts: ModelFacts | None = None) -> ScriptedModel:
    return ScriptedModel([], name=name, facts=facts)


def test_a_model_without_a_price_forbids_a_budget() -> None:
    """One line for each, with what to do about it; free models are fine."""
    models = [model("gpt-x", ModelFacts("gpt-x")), model("free"), model("gpt-x", ModelFacts("x"))]
    refuse_unpriced(BudgetSettings(), models)
    refuse_unpriced(BudgetSettings(daily_usd=1), [model("free")])
    with pytest.raises(SettingsError) as caught:
        refuse_unpriced(BudgetSettings(daily_usd=1), models)
    [line] = str(caught.value).splitlines()
    assert line.startswith("budget.daily_usd is set, but the price of gpt-x is not known: set")
    with pytest.raises(SettingsError, match=r"^budget\.daily_usd and budget\.sender_daily_usd are"):
        refuse_unpriced(BudgetSettings(daily_usd=1, sender_daily_usd=0), models)


async def test_what_is_nearly_spent_is_told(database: Database) -> None:
    """Of all together and of each sender; a process that begins finds who has spent before."""
    await spend(database, ADA, 0.9)
    await spend(database, BOB, 0.1)
    budgets = budgets_of(database, 1.0, daily_usd=1.0)
    found = {each.limit.sender: each for each in await budgets.uses(0.8)}
    assert {name: round(each.share, 2) for name, each in found.items()} == {ADA: 0.9, None: 1.0}
    assert [name for name, each in found.items() if each.refuses] == [None]


async def test_who_spends_most_is_named(database: Database) -> None:
    """Of a budget for all: when it is nearly spent, and when it is used up."""
    await spend(database, ADA, 0.9)
    budgets = budgets_of(database, daily_usd=2.0)
    named = []
    for usd in (0.75, 0.2, 0.2):
        await spend(database, BOB, usd)
        named += [(each.refuses, each.top and each.top[0]) for each in await budgets.uses(0.8)]
    assert named == [(False, ADA), (False, BOB), (True, BOB)]


async def test_those_who_have_nearly_spent_theirs_are_told(database: Database) -> None:
    """For as long as they have."""
    budgets = budgets_of(database, 1.0)
    assert await budgets.uses(0.8) == []
    await call(budgets, ADA, 0.0)
    await spend(database, ADA, 0.85)
    for _ in range(2):
        assert [each.limit.sender for each in await budgets.uses(0.8)] == [ADA]
    await spend(database, BOB, 0.95)
    assert not await is_allowed(budgets, BOB, 0.5)
    found = {each.limit.sender: each.refuses for each in await budgets.uses(0.8)}
    assert found == {ADA: False, BOB: True}


async def test_a_budget_of_nothing_is_no_trouble(database: Database) -> None:
    """It was meant so."""
    assert await budgets_of(database, 0.0, daily_usd=0.0).uses(0.8) == []


async def test_a_limit_that_was_raised_is_not_used_up(database: Database) -> None:
    """What was refused by another limit says nothing of the one that is set now."""
    await spend(database, ADA, 1.0)
    budgets = budgets_of(database, 1.0, daily_usd=1.0)
    assert not await is_allowed(budgets, ADA, 0.1)
    assert [each.refuses for each in await budgets.uses(0.8)] == [True, True]
    budgets.take(BudgetSettings(sender_daily_usd=10.0, daily_usd=1.0), "Europe/Berlin")
    [left] = await budgets.uses(0.8)
    assert (left.limit.sender, left.refuses) == (None, True)
    budgets.take(BudgetSettings(), "Europe/Berlin")
    assert await budgets.uses(0.8) == []


async def test_a_limit_that_was_lowered_is_looked_at_anew(database: Database) -> None:
    """Who was far from the one before may have used up this one, and spends no more."""
    await spend(database, ADA, 0.5)
    budgets = budgets_of(database, 10.0)
    assert await budgets.uses(0.8) == []
    budgets.take(BudgetSettings(sender_daily_usd=0.5), "Europe/Berlin")
    assert [each.refuses for each in await budgets.uses(0.8)] == [True]
