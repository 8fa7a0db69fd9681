"""docs/models.md and the code agree: what is done about each failure, how a turn may end."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, get_args

import yaml

from agent import errors
from agent.errors import BadRequest, ModelError, SpendLimitReached
from agent.models.catalog import DEFAULT_NAMES
from agent.models.factory import build_models
from agent.models.recovery import RetryPolicy, choose_remedy, retreat
from agent.settings import ModelSettings
from agent.turn.loop import Outcome
from gateway.commands import compress
from gateway.pipeline import delegation, turn

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text("utf-8")
Rows = list[list[str]]


@dataclass(eq=False)
class Model:
    """What a strategy asks of a model."""

    name: str = "main"
    context_length: int = 200_000
    provider: str = "anthropic"


def table(heading: str) -> Rows:
    """Return the cells of the first table below a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def documented_actions() -> dict[str, set[str]]:
    """Return the actions of each failure; a row without a name goes on with the one before."""
    found: dict[str, set[str]] = {}
    name = ""
    for cells in table("When a call fails"):
        name = cells[0].strip("`") or name
        found.setdefault(name, set()).update(re.findall(r"`([a-z_]+)`", cells[3]))
    return found


def action(failure: ModelError, others: list[Any], failures: int) -> Iterator[str]:
    """Yield what is decided before what is tried once, and after it."""
    if isinstance(failure, BadRequest):
        failure.is_unexplained = True
    another_key = Model().name in [other.name for other in others]
    left = retreat(failure, RetryPolicy(), failures, others=bool(others), another_key=another_key)
    for untried in (("repair", "suspect_size", "renew_key"), ()):
        found = choose_remedy(failure, untried) or left
        yield found if isinstance(found, str) else "next_model"


def model_errors() -> list[type[ModelError]]:
    """Return the classes that a failed call may have."""
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    return [each for each in classes if issubclass(each, ModelError) and each is not ModelError]


def test_the_page_names_every_failure_with_its_actions() -> None:
    """Whatever it says, whoever else is there, and however often it failed."""
    lines: tuple[list[Any], ...] = ([], [Model()], [Model("other")])
    texts = ("failed", "thinking blocks cannot be modified")
    cases = list(product(texts, lines, (1, 3)))
    assert documented_actions() == {
        each.__name__: {name for text, *case in cases for name in action(each(text), *case)}
        for each in model_errors()
    }


def turn_ends() -> set[str]:
    """Return the outcomes that the gateway itself gives a turn."""
    source = inspect.getsource(turn) + inspect.getsource(compress)
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    outcomes = [call.args[0] for call in calls if ast.unparse(call.func) == "TurnEnd"]
    failures = [each("failed") for each in model_errors()]
    limit = SpendLimitReached("all", 1.0, datetime.now(UTC))
    return {
        *(str(each.value) for each in outcomes if isinstance(each, ast.Constant)),
        *(delegation.outcome_of(each) for each in (*failures, limit)),
    }


def test_the_page_lists_every_exit_reason() -> None:
    """Those of the loop and those of the gateway."""
    known = {name for part in get_args(Outcome) for name in get_args(part)}
    known |= turn_ends()
    assert {cells[0].strip("`") for cells in table("How a turn ends")} == known


def test_the_page_names_the_default_models() -> None:
    """Beside their providers."""
    named = {cells[0].strip("`"): cells[3] for cells in table("Providers")}
    for provider, name in DEFAULT_NAMES.items():
        assert f"`{name}`" in named[provider]


def test_the_documented_local_server_can_be_used() -> None:
    """The page's first block of settings builds a model that costs nothing."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.S | re.M)
    [model] = build_models(ModelSettings(**yaml.safe_load(blocks[0])["model"]))
    assert (model.provider, model.context_length) == ("openai", 32_768)
    assert model.facts.prices is not None
    assert model.facts.prices.input == model.facts.prices.output == 0
