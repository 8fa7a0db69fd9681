"""The registry of the console's pages: each is a function with a path and a menu entry.

```
@page("/admin/conversations/{id}", "Conversation")
async def conversation(ask: Ask) -> Result:
    return Shown("conversation.html", {"it": await ask.inside.database.read(one, ask.number("id"))})


@action("/admin/dead-letters/{id}/retry")
async def retry(ask: Ask) -> Result:
    ...
    return Moved("/admin/dead-letters", "The message is asked again.")
```

A page only shows data. An action only changes data: a form with a verified token calls it, and it
redirects to a page, so a reload repeats nothing. Only owners have access (site.py).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, get_args
from urllib.parse import urlencode

from aiohttp import web

from adapters.door import Visitor
from adapters.registry import BUILT_IN
from agent.plugins.registry import Plugins
from gateway.commands.registry import MoneyRules, StatusFacts
from gateway.errors import GatewayError
from gateway.findings.report import Examination
from gateway.http.server import Health
from gateway.reload.operator import Operator
from gateway.settings.tree import Settings
from gateway.storage.database import Database
from gateway.storage.schema import id_in

HOME = "/admin"
MenuGroup = Literal["Now", "Chats", "People", "System"]
MENU_GROUPS: tuple[MenuGroup, ...] = get_args(MenuGroup)
"""The menu's groups, in order."""


T = TypeVar("T")


class Missing(Exception):
    """The address does not exist; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Inside:
    """The parts of the running gateway available to pages.

    Attributes:
        facts: Returns the current figures of a model; None is the default model.
    """

    database: Database
    health: Health
    facts: Callable[[str | None], StatusFacts]
    money: Callable[[], MoneyRules]
    operator: Operator
    plugins: Plugins

    @property
    def examination(self) -> Examination:
        """The checks for findings, applied to this gateway."""
        return self.health.examination

    @property
    def settings(self) -> Settings:
        """The settings in use."""
        return self.operator.reloading.settings


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of an owner.

    Attributes:
        names: The variable parts of the path by name.
        form: The form fields of an action; empty for a page.
    """

    request: web.Request
    inside: Inside
    visitor: Visitor
    names: Mapping[str, str]
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def by(self) -> str:
        """The owner as "platform:id"."""
        return f"{BUILT_IN}:{self.visitor.sender}"

    def query(self, name: str, default: str = "") -> str:
        """Return a query parameter without surrounding spaces."""
        return self.request.query.get(name, default).strip()

    def chosen(self, known: Mapping[str, T]) -> tuple[T, str]:
        """Return the pressed button's meaning and its object.

        Raises:
            GatewayError: The form has no such button.
        """
        if (what := self.form.get("do", "")) not in known:
            raise GatewayError("Nothing was chosen that can be done.")
        return known[what], self.form.get("whom", "")

    def position(self, name: str) -> int | None:
        """Return the row before a list page; None for the first page."""
        return id_in(self.query(name))

    def pair(self, name: str) -> tuple[int, int] | None:
        """Return a row key of two numbers, as in "7.2"; None for the first page."""
        first, second = (id_in(part) for part in self.query(name).partition(".")[::2])
        return None if first is None or second is None else (first, second)

    def number(self, name: str) -> int:
        """Return a number from the path.

        Raises:
            Missing: It is not a number.
        """
        if (number := id_in(self.names[name])) is None:
            raise Missing(f"{self.names[name]} is no number.")
        return number


@dataclass(frozen=True, slots=True)
class Shown:
    """A page to render.

    Attributes:
        template: Its file in gateway/console/templates.
        values: Template values; rendering fails if one is missing.
        title: A title other than the registered one.
        refused: Why nothing changed, when a form is shown again with status 409.
    """

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """A redirect after an action, with a text to show once."""

    to: str
    said: str = ""
    failed: bool = False


Result: TypeAlias = Shown | Moved | web.StreamResponse
"""The result of a page; a response, such as a file, is sent unchanged."""
Handler: TypeAlias = Callable[[Ask], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Registered:
    """A page or an action.

    Attributes:
        path: The path, with variable parts in braces.
        title: The title of a page; empty for an action.
        group: Its menu group; None for a page reached through links.
    """

    method: Literal["GET", "POST"]
    path: str
    title: str
    group: MenuGroup | None
    handler: Handler


REGISTER: list[Registered] = []


def page(path: str, title: str, group: MenuGroup | None = None) -> Callable[[Handler], Handler]:
    """Register a page; within a menu group, pages keep the order of registration."""
    return lambda handler: _registered(Registered("GET", path, title, group, handler))


def action(path: str) -> Callable[[Handler], Handler]:
    """Register an action that handles posted forms."""
    return lambda handler: _registered(Registered("POST", path, "", None, handler))


def _registered(entry: Registered) -> Handler:
    REGISTER.append(entry)
    return entry.handler


PAGE = 50
"""Rows per list page; one more is read to detect a next page."""


def listed(rows: Sequence[T]) -> Sequence[T]:
    """Return the rows to show from the rows read."""
    return rows[:PAGE]


def pages(
    path: str,
    rows: Sequence[T],
    key: Callable[[T], object],
    after: object,
    filters: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the addresses of a list's next page and first page, or "".

    A page starts after the last row of the previous page, so new rows shift nothing.

    Args:
        rows: The rows read, one more than shown if a next page exists.
        key: Returns a row's key, for `after`.
        after: The key of the row before this page; empty for the first page.
        filters: Other query parameters.
    """
    asked = {name: value for name, value in (filters or {}).items() if value}
    following = asked | {"after": str(key(rows[PAGE - 1]))} if len(rows) > PAGE else {}
    first = f"{path}?{urlencode(asked)}" if asked else path
    return {
        "older": f"{path}?{urlencode(following)}" if following else "",
        "first": first if after else "",
    }
