"""The register of the console's pages: each is one function with a path and a place in the menu.

```
@page("/admin/conversations/{id}", "Conversation")
async def conversation(ask: Ask) -> Result:
    return Shown("conversation.html", {"it": await ask.inside.database.read(one, ask.number("id"))})


@action("/admin/dead-letters/{id}/retry")
async def retry(ask: Ask) -> Result:
    ...
    return Moved("/admin/dead-letters", "The message is asked again.")
```

A page only shows, an action only changes: it is reached by a form whose token was checked, and
leads to a page, so that a reload repeats nothing. Only owners come so far (routes.py).
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, get_args
from urllib.parse import urlencode

from aiohttp import web

from adapters.door import Visitor
from adapters.registry import BUILT_IN
from agent.plugins.registry import Plugins
from gateway.commands.registry import MoneyRules, StatusFacts
from gateway.findings.report import Examination
from gateway.http.server import Health
from gateway.reload.operator import Operator
from gateway.settings.tree import Settings
from gateway.storage.database import Database

HOME = "/admin"
MenuGroup = Literal["Now", "Chats", "People", "System"]
MENU_GROUPS: tuple[MenuGroup, ...] = get_args(MenuGroup)
"""Parts of the menu, in order."""

_NUMBER = re.compile(r"[0-9]{1,18}")


class Missing(Exception):
    """There is nothing at this address; the text says what is not there."""


@dataclass(frozen=True, slots=True)
class Inside:
    """The running gateway, as far as pages look into it.

    Attributes:
        facts: Returns the figures of a model as they are now; of the default one for None.
        money: Returns the prices of models as they are now.
        operator: Does what changes something, and puts it on record.
    """

    database: Database
    health: Health
    facts: Callable[[str | None], StatusFacts]
    money: Callable[[], MoneyRules]
    operator: Operator
    plugins: Plugins

    @property
    def examination(self) -> Examination:
        """What looks at the gateway."""
        return self.health.examination

    @property
    def settings(self) -> Settings:
        """What the gateway goes by now."""
        return self.operator.reloading.settings


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of an owner.

    Attributes:
        names: What the path says, by the names in the register.
        form: The fields of an action's form; empty for a page.
    """

    request: web.Request
    inside: Inside
    visitor: Visitor
    names: Mapping[str, str]
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def by(self) -> str:
        """Who asks, as the audit log and turns have it."""
        return f"{BUILT_IN}:{self.visitor.sender}"

    def query(self, name: str, default: str = "") -> str:
        """Return what the address asks for, without spaces around it."""
        return self.request.query.get(name, default).strip()

    def position(self, name: str) -> int | None:
        """Return the place that a page of a list begins behind; None for its first page."""
        text = self.query(name)
        return int(text) if _NUMBER.fullmatch(text) else None

    def pair(self, name: str) -> tuple[int, int] | None:
        """Return a place of two numbers, as in "7.2"; None for the first page."""
        first, _, second = self.query(name).partition(".")
        is_place = _NUMBER.fullmatch(first) and _NUMBER.fullmatch(second)
        return (int(first), int(second)) if is_place else None

    def number(self, name: str) -> int:
        """Return a number that is part of the path.

        Raises:
            Missing: It is none.
        """
        text = self.names[name]
        if not _NUMBER.fullmatch(text):
            raise Missing(f"{text} is no number.")
        return int(text)


@dataclass(frozen=True, slots=True)
class Shown:
    """A page that is shown.

    Attributes:
        template: Its file in gateway/console/templates.
        values: What the template shows; it fails where it asks for anything else.
        title: Where it differs from that in the register.
        refused: Why nothing was changed, where a form is shown once more; the status is 409 then.
    """

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """Where an action leads, and what is said there once.

    Attributes:
        to: A path of the console.
        said: One or two sentences; empty for nothing.
        failed: Nothing was changed; the text says why.
    """

    to: str
    said: str = ""
    failed: bool = False


Result: TypeAlias = Shown | Moved | web.StreamResponse
"""What a page returns: a response of its own is sent as it is (a stream of lines, a file)."""
Handler: TypeAlias = Callable[[Ask], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Registered:
    """A page or an action.

    Attributes:
        path: With names in braces, each of which stands for one part of the path.
        title: Of a page; empty for an action.
        group: Where it stands in the menu; None for a page that others lead to.
        pattern: Takes the paths that are meant.
    """

    method: Literal["GET", "POST"]
    path: str
    title: str
    group: MenuGroup | None
    handler: Handler
    pattern: re.Pattern[str]


REGISTER: list[Registered] = []


def page(path: str, title: str, group: MenuGroup | None = None) -> Callable[[Handler], Handler]:
    """Register a page; of a group those stand in the menu in the order of registration."""
    return lambda handler: _registered("GET", path, title, group, handler)


def action(path: str) -> Callable[[Handler], Handler]:
    """Register an action: what a form does that is posted to the path."""
    return lambda handler: _registered("POST", path, "", None, handler)


def _registered(
    method: Literal["GET", "POST"],
    path: str,
    title: str,
    group: MenuGroup | None,
    handler: Handler,
) -> Handler:
    pattern = re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(path)))
    REGISTER.append(Registered(method, path, title, group, handler, pattern))
    return handler


def find(method: str, path: str) -> tuple[Registered, Mapping[str, str]] | None:
    """Return what answers a path, and what it names; None where nothing does."""
    for entry in REGISTER:
        # HEAD is answered as GET is, without the body.
        if entry.method == ("GET" if method == "HEAD" else method):
            found = entry.pattern.fullmatch(path)
            if found:
                return entry, found.groupdict()
    return None


T = TypeVar("T")
PAGE = 50
"""Rows of a page of a list; one more is read, to know whether there is another page."""


def listed(rows: Sequence[T]) -> Sequence[T]:
    """Return the rows that are shown of those that were read."""
    return rows[:PAGE]


def older(
    path: str,
    rows: Sequence[T],
    key: Callable[[T], object],
    filters: Mapping[str, str] | None = None,
) -> str:
    """Return the address of the next page of a list; "" where there is none.

    A page begins behind the last row of the one before it: what comes meanwhile moves nothing.

    Args:
        path: Of the list.
        rows: As they were read, one more than is shown where there is another page.
        key: Names a row, for `after`.
        filters: What else the address asks for.
    """
    if len(rows) <= PAGE:
        return ""
    return address(path, {**(filters or {}), "after": str(key(rows[PAGE - 1]))})


def address(path: str, asked: Mapping[str, str]) -> str:
    """Return the address of a page with what it is asked for; empty values are left out."""
    kept = urlencode({name: value for name, value in asked.items() if value})
    return f"{path}?{kept}" if kept else path
