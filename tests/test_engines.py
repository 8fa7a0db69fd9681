"""Which tests run on both databases: those that come upon a gateway, however they do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engines import comes_upon_gateway
from tests.support.gateway import message, running


async def directly(tmp_path: Path) -> None:
    async with running(tmp_path) as chat:
        await chat.ask("hello")


async def by_a_helper(tmp_path: Path) -> None:
    async def inside() -> None:
        await directly(tmp_path)

    await inside()


class Helper:
    async def run(self, tmp_path: Path) -> None:
        await by_a_helper(tmp_path)


async def by_a_class(tmp_path: Path) -> None:
    await Helper().run(tmp_path)


@given(st.text())
async def as_a_property(text: str) -> None:
    await directly(Path(text))


def without() -> None:
    message("hello")


def by_itself() -> None:
    by_itself()


@pytest.mark.parametrize(
    ("test", "does"),
    [
        (directly, True),
        (by_a_helper, True),
        (by_a_class, True),
        (as_a_property, True),
        (without, False),
        (by_itself, False),
    ],
)
def test_a_gateway_is_found_wherever_it_is_run(test: Callable[..., Any], does: bool) -> None:
    """By the names that a test uses, and those that these use."""
    assert comes_upon_gateway(test) is does
