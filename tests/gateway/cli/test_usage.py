"""`parley usage`: sums over the ledger."""

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest

from agent.messages import Usage, assistant_message
from gateway.storage.conversation import turn_journal
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.conversation.turns import Turn
from gateway.storage.reports import spending
from gateway.storage.schema import ledger as table
from tests.support.command_line import Result, Run
from tests.support.storage import Store, model_call, outdated_file, parts, turn_of

USAGE = Usage(1_000, 20, 3_000, 40, 5)


@pytest.fixture
def usage(parley: Run) -> Run:
    """Run `parley usage …`."""
    return partial(parley, "usage")


@pytest.fixture
def current(store: Store) -> Turn:
    """A turn that runs."""
    return store.run(turn_of, "Find [red]it[/red]")


def now() -> datetime:
    return datetime.now(ZoneInfo("UTC"))


def book(store: Store, current: Turn, at: datetime | None = None, **call: Any) -> None:
    """Book a call of a turn at a time."""
    made = model_call(call.pop("usage", USAGE), **call)
    store.run(spending.book, current.lease.conversation, current.id, current.sender, [made])
    newest = max(row.id for row in store.rows(table))
    dated = table.update().where(table.c.id == newest).values(at=(at or now()).timestamp())
    store.run(lambda conn: conn.execute(dated))


def cells(line: str) -> list[str]:
    return line.split()


def data(result: Result) -> Any:
    *groups, last = map(orjson.loads, result.out.splitlines())
    return {"groups": groups, **last}


def test_days_are_shown_with_their_sum(usage: Run, store: Store, current: Turn) -> None:
    """Calls, tokens by kind, share of the cache, cost; in the order of time."""
    yesterday = now() - timedelta(days=1)
    book(store, current)
    book(store, current)
    book(store, current, at=yesterday, cost_usd=0.25)
    head, *lines = usage().out.splitlines()
    assert " ".join(head.split()) == (
        "day calls input cache read write 5m write 1h output hits x least cost"
    )
    assert [cells(line) for line in lines] == [
        [str(yesterday.date()), "1", "1,000", "3,000", "40", "5", "20", "74.2%", "-", "$0.25"],
        [str(now().date()), "2", "2,000", "6,000", "80", "10", "40", "74.2%", "-", "$1.00"],
        ["total", "3", "3,000", "9,000", "120", "15", "60", "74.2%", "-", "$1.25"],
    ]


@pytest.mark.thorough
def test_unknown_and_estimated_costs_are_marked(usage: Run, store: Store, current: Turn) -> None:
    """An unknown price is never 0."""
    book(store, current, model="known", estimated=True)
    book(store, current, model="unknown", cost_usd=None)
    head, *lines = map(str.rstrip, usage("--by", "model").out.splitlines())
    assert head.startswith("model")
    assert lines[0].startswith("anthropic/known")
    assert lines[0].endswith("~$0.50")
    assert lines[1].endswith("  1 call of unknown price")
    assert lines[2].endswith("~$0.50 + 1 call of unknown price")


def test_nothing_read_is_no_hit_ratio(usage: Run, store: Store, current: Turn) -> None:
    """As where a call had no report."""
    book(store, current, usage=None)
    line = usage().out.splitlines()[1].rstrip()
    assert line.endswith("1 call of unknown price")
    assert cells(line)[7:9] == ["-", "-"]


def test_senders_and_conversations(usage: Run, store: Store, current: Turn) -> None:
    """The dearest first; a title is shown as it is."""
    book(store, current)
    book(store, store.run(turn_of, "hi", chat="43"), cost_usd=2.0)
    lines = usage("--by", "sender").out.splitlines()
    assert [cells(line)[0] for line in lines[1:]] == ["telegram:43", "telegram:42", "total"]
    lines = usage("--by", "conversation").out.splitlines()
    assert lines[1].startswith("2 hi ")
    assert lines[2].startswith("1 Find [red]it[/red] ")


def test_outcomes_have_counts_and_shares(usage: Run, store: Store, current: Turn) -> None:
    """How turns ended, and what that cost."""
    end = TurnEnd("spend_limit", model_call(USAGE))
    store.run(turn_journal.commit, current, [assistant_message("ok")], parts(current), end)
    for chat in ("43", "44"):
        store.run(turn_of, "hi", chat=chat)
    head, *lines = usage("--by", "outcome").out.splitlines()
    assert cells(head)[:3] == ["outcome", "turns", "share"]
    assert "least" not in head
    assert cells(lines[0])[:4] == ["running", "2", "66.7%", "0"]
    assert cells(lines[1])[:4] == ["spend_limit", "1", "33.3%", "1"]
    assert cells(lines[1])[-1] == "$0.50"
    assert cells(lines[2])[:3] == ["total", "3", "1"]


def test_the_background_has_a_line_among_outcomes(usage: Run, store: Store, current: Turn) -> None:
    """Without turns; also where it is all there is."""
    call = model_call(USAGE)
    store.run(spending.book, current.lease.conversation, None, current.sender, [call])
    lines = usage("--by", "outcome").out.splitlines()[1:]
    assert cells(lines[0])[:4] == ["running", "1", "100.0%", "0"]
    assert cells(lines[1])[:4] == ["(background)", "-", "-", "1"]
    assert cells(lines[2])[:3] == ["total", "1", "1"]
    found = data(usage("--by", "outcome", "--json"))
    assert [(group["name"], group["turns"]) for group in found["groups"]] == [
        ("running", 1),
        ("(background)", 0),
    ]
    assert found["total"] == data(usage("--by", "sender", "--json"))["total"]


def test_costs_stand_below_each_other(usage: Run, store: Store, current: Turn) -> None:
    """Aligned at their last digit."""
    book(store, current, cost_usd=10.0)
    book(store, store.run(turn_of, "hi", chat="43"), cost_usd=2.0)
    lines = usage("--by", "sender").out.splitlines()
    assert len({len(line.rstrip()) for line in lines}) == 1


def test_help_names_what_calls_are_grouped_by(usage: Run) -> None:
    """In a sentence, where nothing is broken within a word."""
    told = " ".join(usage("--help").out.split())
    assert "day, sender, conversation, model, outcome" in told


def test_what_calls_are_not_grouped_by_is_told(usage: Run) -> None:
    """With the words that are meant, and none of the library that reads them."""
    told = " ".join(usage("--by", "foo").err.split())
    assert "Invalid value for '--by': 'foo' is not one of 'day', 'sender'" in told


@pytest.mark.parametrize(
    ("since", "calls"),
    [
        ("1d", 1),
        ("3d", 2),
        ("2026-01-01", 3),
        ("0001-01-01", 3),
        ("9999d", 3),
    ],
)
def test_since_is_a_date_or_a_number_of_days(
    usage: Run, store: Store, current: Turn, since: str, calls: int
) -> None:
    """Today is one of the days; a long time ago costs no time."""
    for days in (0, 2, 40):
        book(store, current, at=now() - timedelta(days=days))
    for by in ("day", "sender"):
        assert data(usage("--since", since, "--by", by, "--json"))["total"]["calls"] == calls


def test_a_month_is_shown_unless_told_otherwise(usage: Run, store: Store, current: Turn) -> None:
    """Thirty days, today included."""
    for days in (29, 30):
        book(store, current, at=now() - timedelta(days=days))
    found = data(usage("--json"))
    assert found["since"] == str(now().date() - timedelta(days=29))
    assert found["total"]["calls"] == 1


def test_days_are_those_of_the_settings(
    usage: Run, store: Store, current: Turn, tmp_path: Path
) -> None:
    """They begin at midnight in `sessions.timezone`."""
    (tmp_path / "parley.yaml").write_text("sessions: {timezone: Pacific/Kiritimati}\n")
    day = datetime.now(ZoneInfo("Pacific/Kiritimati")).replace(hour=0, minute=0, second=0)
    book(store, current, at=day)
    book(store, current, at=day - timedelta(seconds=2))
    found = data(usage("--json"))
    assert found["timezone"] == "Pacific/Kiritimati"
    names = [group["name"] for group in found["groups"]]
    assert names == [str(day.date() - timedelta(days=1)), str(day.date())]


def test_json_has_every_figure(usage: Run, store: Store, current: Turn) -> None:
    """Groups and their sum; an unknown cost is null."""
    book(store, current, cost_usd=None)
    found = data(usage("--by", "conversation", "--json"))
    assert found["by"] == "conversation"
    assert found["groups"] == [
        {"name": "1", "title": "Find [red]it[/red]", **found["total"]},
    ]
    assert found["total"] == {
        "calls": 1,
        "input_tokens": 1_000,
        "cache_read_tokens": 3_000,
        "cache_write_5m_tokens": 40,
        "cache_write_1h_tokens": 5,
        "output_tokens": 20,
        "hit_ratio": 3_000 / 4_045,
        "billed_to_least_ratio": None,
        "usd": None,
        "unknown_calls": 1,
        "estimated": False,
    }
    assert data(usage("--by", "outcome", "--json"))["groups"][0]["turns"] == 1


CLAUDE: dict[str, Any] = {"model": "claude-opus-5", "usage": Usage(cache_write_5m_tokens=10_000)}


@pytest.mark.parametrize("by", ["day", "sender", "conversation", "model"])
def test_bills_are_compared_with_the_least(
    usage: Run, store: Store, current: Turn, by: str
) -> None:
    """Call by call: what was sent before the first day could have been read."""
    for days in (40, 1, 0):
        book(store, current, at=now() - timedelta(days=days), **CLAUDE)
    lines = usage("--by", by).out.splitlines()[1:]
    assert len(lines) == (3 if by == "day" else 2)
    assert {cells(line)[-2] for line in lines} == {"12.50"}
    found = data(usage("--by", by, "--json"))
    assert found["total"]["billed_to_least_ratio"] == pytest.approx(12.5)


def test_what_has_no_price_is_not_compared(usage: Run, store: Store, current: Turn) -> None:
    """The sum is that of the others."""
    book(store, current, **CLAUDE)
    book(store, current, provider="", cost_usd=0.1)
    lines = usage("--by", "model").out.splitlines()[1:]
    assert [(cells(line)[0], cells(line)[-2]) for line in lines] == [
        ("anthropic/claude-opus-5", "1.00"),
        ("model-1", "-"),
        ("total", "1.00"),
    ]


def test_prices_of_the_settings_are_compared_too(
    usage: Run, store: Store, current: Turn, tmp_path: Path
) -> None:
    """Of a fallback as well."""
    facts = "{name: mine, facts: {input_usd: 1, output_usd: 2}}"
    (tmp_path / "parley.yaml").write_text(f"fallbacks: [{facts}]\n")
    for tokens in (0, 5_000):
        half = Usage(10_000 - tokens, cache_read_tokens=tokens)
        book(store, current, model="mine", usage=half)
    assert cells(usage().out.splitlines()[1])[-2] == "1.41"


def test_an_empty_ledger_is_a_sum_of_nothing(usage: Run, store: Store) -> None:
    """Not an error, by whatever it is told."""
    for by in ("day", "sender", "conversation", "model", "outcome"):
        result = usage("--by", by)
        assert (result.code, len(result.out.splitlines())) == (0, 2)
        assert result.out.splitlines()[1].split()[-1] == "$0"


@pytest.mark.parametrize(
    ("since", "why"),
    [
        ("soon", "is neither a date such as"),
        ("0d", "is neither a date such as"),
        ("-3d", "is neither a date such as"),
        ("2026-02-30", "is neither a date such as"),
        ("9999-01-01", "is still to come"),
    ],
)
def test_a_wrong_since_is_explained(usage: Run, store: Store, since: str, why: str) -> None:
    """Before anything is read."""
    result = usage(f"--since={since}")
    assert (result.code, result.out) == (2, "")
    assert "--since" in result.err
    assert why in " ".join(result.err.replace("│", " ").split())


def test_an_unknown_grouping_is_an_error(usage: Run, store: Store) -> None:
    """What there is stands in it."""
    result = usage("--by", "colour")
    assert result.code == 2
    assert "conversation" in result.err


def test_without_a_database_there_is_one_line(usage: Run) -> None:
    """It is not created."""
    result = usage()
    assert (result.code, result.out) == (1, "")
    assert "there is no database" in result.err


def test_an_older_schema_is_not_read(usage: Run, tmp_path: Path) -> None:
    """What to do stands in the line."""
    outdated_file(tmp_path / "parley.db", "0002")
    result = usage()
    assert (result.code, result.out) == (1, "")
    assert "parley db migrate" in result.err
