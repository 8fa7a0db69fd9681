"""What is found of accounts."""

from pathlib import Path

import pytest

from gateway.findings.finding import Evidence, Sight, Unsure
from gateway.findings.report import FINDINGS
from gateway.supervision.silence import AccountHealth
from gateway.supervision.vitals import LiveFacts


@pytest.mark.parametrize(
    ("waiting", "last_sent_s", "expected"),
    [(2, None, [Unsure("telegram:default")]), (0, None, []), (2, 3.0, [])],
)
def test_after_a_start_an_account_may_be_as_silent_as_before(
    tmp_path: Path, waiting: int, last_sent_s: float | None, expected: list[Unsure]
) -> None:
    """Until something was sent, or nothing waits, nobody can tell."""
    health = AccountHealth(waiting, 30.0, last_sent_s, None, None, None)
    facts = Evidence(tmp_path, live=LiveFacts(accounts={("telegram", "default"): health}))
    assert list(FINDINGS["adapter-silent"].look(facts)) == expected


def test_a_silent_account_says_what_the_platform_said(tmp_path: Path) -> None:
    """Who reads it at night knows then whose trouble it is."""
    health = AccountHealth(2, 90.0, None, 1.0, 90.0, None, "HTTP status 502")
    facts = Evidence(tmp_path, live=LiveFacts(accounts={("telegram", "default"): health}))
    [seen] = FINDINGS["adapter-silent"].look(facts)
    assert isinstance(seen, Sight)
    assert seen.values["reason"] == "HTTP status 502"
