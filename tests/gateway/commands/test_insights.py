"""`/insights`: what it says about the last days."""

from collections import Counter
from dataclasses import replace

import pytest

from agent.messages import Usage
from gateway.commands.insights import insights_text
from gateway.storage.reports.spending import Spent
from gateway.storage.reports.usage import Insights

LAST = Spent(2, Usage(20, 50, 930, 50), 0.0125)
TODAY = Spent(5, Usage(), 0.3)
FARED = Insights(
    outcomes=Counter(final_text=8, max_iterations=2),
    tools=Counter(look=30, dig=10),
    models={"claude-test": LAST, "small": TODAY},
    durations_s=[1.0, 2.0, 60.0],
)


def test_insights_are_a_few_lines() -> None:
    """Turns by outcome, tools, tokens, cost by model, times."""
    assert insights_text(FARED).splitlines() == [
        "This conversation in the last 30 days:",
        "",
        "- **Turns**: 10: answered 8 (80%), max iterations 2 (20%)",
        "- **Time**: half of the turns took up to 2.0 s, 95% up to 60.0 s",
        "- **Tool calls**: 40: `look` 30, `dig` 10",
        "- **Model calls**: 7; 1,000 tokens in, 930 from the cache (93%), 50 into it; 50 out",
        "- **Cost**: $0.3125",
        "  - `claude-test`: 2 calls, $0.0125",
        "  - `small`: 5 calls, $0.30",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "1 ms"), (0.0401, "41 ms"), (0.9, "900 ms"), (1.0, "1.0 s"), (1234.5, "1,234.5 s")],
)
def test_short_times_are_told_in_milliseconds(seconds: float, text: str) -> None:
    """Never as nothing."""
    lines = insights_text(replace(FARED, durations_s=[seconds])).splitlines()
    assert lines[3] == f"- **Time**: half of the turns took up to {text}, 95% up to {text}"


def test_insights_stay_short() -> None:
    """With many tools, models and outcomes as well."""
    many = replace(
        FARED,
        tools=Counter({f"tool{n}": 1 for n in range(50)}),
        models={f"m{n}": TODAY for n in range(50)},
    )
    text = insights_text(many)
    assert len(text.splitlines()) <= 15
    assert "`tool4` 1, others 45" in text
    assert "  - others: $13.50" in text


def test_a_turn_that_only_runs_has_no_time_yet() -> None:
    """Nor need it have called a model or a tool."""
    running = Insights(Counter(running=1), Counter(), {}, [])
    assert insights_text(running).splitlines()[2:] == [
        "- **Turns**: 1: running 1 (100%)",
        "- **Tool calls**: 0",
        "- **Model calls**: 0; 0 tokens in, 0 from the cache (0%); 0 out",
        "- **Cost**: $0",
    ]


def test_background_work_alone_is_shown() -> None:
    """A summary may be all that was paid for lately."""
    assert "- **Turns**: 0\n" in insights_text(replace(FARED, outcomes=Counter()))


def test_where_nothing_was_asked_insights_say_so() -> None:
    """In one line."""
    nothing = Insights(Counter(), Counter(), {}, [])
    assert insights_text(nothing) == "This conversation in the last 30 days: nothing was asked."
