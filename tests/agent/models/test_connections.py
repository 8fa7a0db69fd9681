"""`/stop` cuts a call wherever it is; its connection is closed or free again, never lost."""

import pytest

from agent.models.base import ModelRequest
from tests.agent.models.clients import ASK, BOTH, Double, connected, connector_of
from tests.support.cancelling import cancelled_at
from tests.support.model_server import ModelServer, Reply, SinkSpy

HELLO = ModelRequest(ASK)
MOST_AWAITS = 50


@pytest.mark.parametrize("double", BOTH)
@pytest.mark.parametrize("used", [False, True], ids=["new connection", "used connection"])
async def test_a_call_cancelled_at_any_await_loses_no_connection(
    double: Double, used: bool
) -> None:
    """Connections of httpx itself lost one at two of their awaits (decision 004)."""
    async with double(default=Reply(text="Hello")) as server:
        for n in range(1, MOST_AWAITS):
            if not await _is_cancelled_at(server, n, used=used):
                return
    pytest.fail("a call has more awaits than were tried")


async def _is_cancelled_at(server: ModelServer, n: int, *, used: bool) -> bool:
    """Cancel a call at its n-th await, if it has so many, and make another one."""
    async with connected(server) as model:
        if used:
            await model.complete(HELLO, SinkSpy())
        is_cancelled = await cancelled_at(model.complete(HELLO, SinkSpy()), n)
        await model.complete(HELLO, SinkSpy())
        connector = connector_of(model)
        assert not connector._acquired
        assert len(connector._conns) == 1
    return is_cancelled
