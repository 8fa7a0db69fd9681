"""The way into the console: everything below /admin is behind the web chat's guard, for owners.

Nothing else of the console is imported before the first of its pages is asked for.
"""

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING

from aiohttp import web

from adapters.door import OWNER
from adapters.web.guard import Guard, visitor_of
from adapters.web.requests import Refusal
from gateway.console.register import HOME, Inside

if TYPE_CHECKING:
    from gateway.console.site import Site

OWNERS_ONLY = "The console is for owners of this Parley. Your chats are on the page before it."


class Console:
    """Serves the console.

    Args:
        inside: The running gateway.
        guard: The web chat's.
    """

    def __init__(self, inside: Inside, guard: Guard) -> None:
        self._inside = inside
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
        if visitor_of(request).role != OWNER.role:
            raise Refusal(403, "owners_only", OWNERS_ONLY)
        if "_site" not in self.__dict__:
            # Templates and pages take a tenth of a second to import.
            await asyncio.to_thread(lambda: self._site)
        return await self._site.answer(request)

    @cached_property
    def _site(self) -> "Site":
        from gateway.console.site import Site  # noqa: PLC0415

        return Site(self._inside)
