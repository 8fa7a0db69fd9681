"""Alerts whose end need not be waited for."""

import pytest

from gateway.findings import telling


def end_soon(patch: pytest.MonkeyPatch) -> None:
    """What nobody sees any more is over at the next look."""
    patch.setattr(telling, "QUIET_S", 0.0)
