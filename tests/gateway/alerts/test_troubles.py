"""The register of troubles, and the page that shows it."""

import re
from pathlib import Path

import pytest

from agent.errors import CredentialsRefused
from agent.models.recovery import Failing
from gateway.alerts.troubles import (
    OF_DATABASE,
    TROUBLES,
    AlertFacts,
    Evidence,
    Models,
    Stored,
    Unsure,
    trouble,
)
from gateway.settings.tree import AlertSettings
from gateway.storage.reports.health import Waiting
from gateway.supervision.silence import AccountHealth

ROOT = Path(__file__).parents[3]


def page() -> str:
    """Return the table of docs/alerts.md."""
    rows = [
        f"| `{each.id}` | {each.level} | {_cell(each.begin)} | {_cell(each.over) or '-'}"
        f" | {_cell(each.remedy)} |"
        for each in TROUBLES.values()
    ]
    return "\n".join([_HEAD, *rows]) + "\n"


def _cell(text: str) -> str:
    return text.replace("{", "*").replace("}", "*")


_HEAD = """| id | level | what is told when it begins | and when it is over | what to do |
|---|---|---|---|---|"""


def test_the_page_has_all_troubles() -> None:
    """docs/alerts.md ends with what the code says."""
    text = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    assert text.endswith(page())


def test_two_troubles_have_two_ids() -> None:
    """A third one of a known id is a mistake, told at the import."""
    with pytest.raises(ValueError, match="two troubles are called disk-full"):
        trouble("disk-full", "x", remedy="y")(lambda _: iter(()))


@pytest.mark.parametrize("kind", TROUBLES.values(), ids=lambda each: each.id)
def test_each_says_what_to_do(kind: object) -> None:
    """In a sentence that begins small and has no full stop: the chat's text puts both around it."""
    found = TROUBLES[getattr(kind, "id", "")]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", found.id)
    assert "{subject}" in found.begin or found.id in {
        "database-down",
        "stranger-asks",
        "backup-overdue",
    }
    for text in filter(None, (found.begin, found.over, found.remedy)):
        assert not text[0].isupper()
        assert not text.endswith(".")


def test_what_needs_the_database_is_named() -> None:
    """Else an alert would be over when the database cannot be read."""
    assert set(TROUBLES) >= OF_DATABASE


@pytest.mark.parametrize(
    ("waiting", "last_sent_s", "expected"),
    [(2, None, [Unsure("telegram:default")]), (0, None, []), (2, 3.0, [])],
)
def test_after_a_start_an_account_may_be_as_silent_as_before(
    waiting: int, last_sent_s: float | None, expected: list[Unsure]
) -> None:
    """Until something was sent, or nothing waits, nobody can tell."""
    health = AccountHealth(waiting, 30.0, last_sent_s, None, None, None)
    facts = AlertFacts(AlertSettings(), accounts={("telegram", "default"): health}, stored=Stored())
    assert list(TROUBLES["adapter-silent"].look(facts)) == expected


def test_a_silent_account_says_what_the_platform_said() -> None:
    """Who reads it at night knows then whose trouble it is."""
    health = AccountHealth(2, 90.0, None, 1.0, 90.0, None, "HTTP status 502")
    account = "telegram", "default"
    stored = Stored(unsent={account: Waiting(2, 90.0)})
    [seen] = TROUBLES["adapter-silent"].look(
        AlertFacts(AlertSettings(), accounts={account: health}, stored=stored)
    )
    assert isinstance(seen, Evidence)
    assert seen.values["reason"] == "HTTP status 502"


@pytest.mark.parametrize(
    ("answered", "said"),
    [({"b", "summary"}, "b answers instead"), ({"summary"}, "no other model answers instead")],
)
def test_a_refused_key_says_who_answers_instead(answered: set[str], said: str) -> None:
    """A model that only writes summaries answers nobody."""
    failing = {"a": Failing(CredentialsRefused("401"), 1, 0.0)}
    models = Models(
        frozenset({"a", "b", "summary"}), failing, frozenset(answered), line=frozenset({"a", "b"})
    )
    [seen, *_] = TROUBLES["key-refused"].look(AlertFacts(AlertSettings(), models=models))
    assert isinstance(seen, Evidence)
    assert seen.values["instead"] == said
