"""A PARLEY_HOME of the test's own, and `parley …` in this process, as tests of commands do."""

from tests.gateway.conftest import home, parley

__all__ = ["home", "parley"]
