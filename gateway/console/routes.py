"""The way into the console: everything below /admin is behind the web chat's guard, for owners.

All its paths are one handler: who may not come in is told so before the register is asked what is
there, so that no page can be added without the guard, and nobody else learns which pages there are.
"""

from aiohttp import web

from adapters.door import OWNER
from adapters.web.guard import Guard, visitor_of
from adapters.web.requests import Refusal
from gateway.console.register import HOME, Inside
from gateway.console.site import ConsoleSite

OWNERS_ONLY = "The console is for owners of this Parley. Your chats are on the page before it."


class Console:
    """Serves the console.

    Args:
        inside: The running gateway.
        guard: The web chat's.
    """

    def __init__(self, inside: Inside, guard: Guard) -> None:
        self._site = ConsoleSite(inside)
        self._guard = guard

    def routes(self) -> list[web.RouteDef]:
        """Return its routes; what is not in the register is answered by them, too."""
        answer = self._guard.protect(self._answer, forms=True)
        paths = (HOME, HOME + "/{tail:.*}")
        return [
            *(web.get(path, answer) for path in paths),
            *(web.post(path, answer) for path in paths),
        ]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Hand an owner's request on to the pages.

        Raises:
            Refusal: Somebody else asks.
        """
        if visitor_of(request).role != OWNER.role:
            raise Refusal(403, "owners_only", OWNERS_ONLY)
        return await self._site.answer(request)
