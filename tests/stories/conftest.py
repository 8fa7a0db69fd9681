"""A PARLEY_HOME of the test's own, and `parley …` in this process, as tests of commands do."""

import pytest

from tests.gateway.conftest import home, parley
from tests.support.engines import database_engine, on_both

__all__ = ["database_engine", "home", "parley"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what runs a gateway on both databases."""
    on_both(metafunc)
