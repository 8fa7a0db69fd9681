"""What is found of models."""

from pathlib import Path

import pytest

from agent.errors import CredentialsRefused
from agent.models.recovery import Failing
from gateway.findings.finding import Evidence, Sight
from gateway.findings.report import FINDINGS
from gateway.supervision.vitals import LiveFacts, Models


@pytest.mark.parametrize(
    ("answered", "said"),
    [({"b", "summary"}, "b answers instead"), ({"summary"}, "no other model answers instead")],
)
def test_a_refused_key_says_who_answers_instead(
    tmp_path: Path, answered: set[str], said: str
) -> None:
    """A model that only writes summaries answers nobody."""
    failing = {"a": Failing(CredentialsRefused("401"), 1, 0.0)}
    models = Models(
        frozenset({"a", "b", "summary"}), failing, frozenset(answered), line=frozenset({"a", "b"})
    )
    [seen, *_] = FINDINGS["key-refused"].look(Evidence(tmp_path, live=LiveFacts(models=models)))
    assert isinstance(seen, Sight)
    assert seen.values["instead"] == said
