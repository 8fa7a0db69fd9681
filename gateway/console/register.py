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

A page only shows. An action only changes: a form with a checked token calls it, and it leads to a
page, so that a reload repeats nothing. Only owners get here (site.py).
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
"""Parts of the menu, in order."""


T = TypeVar("T")


class Missing(Exception):
    """Nothing is at this address; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Inside:
    """The parts of the running gateway that pages use.

    Attributes:
        facts: Returns the current figures of a model; of the default one for None.
    """

    database: Database
    health: Health
    facts: Callable[[str | None], StatusFacts]
    money: Callable[[], MoneyRules]
    operator: Operator
    plugins: Plugins

    @property
    def examination(self) -> Examination:
        """The register of findings, applied to this gateway."""
        return self.health.examination

    @property
    def settings(self) -> Settings:
        """The settings in use."""
        return self.operator.reloading.settings


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of an owner.

    Attributes:
        names: The variable parts of the path, by their names in the register.
        form: The fields of an action's form; empty for a page.
    """

    request: web.Request
    inside: Inside
    visitor: Visitor
    names: Mapping[str, str]
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def by(self) -> str:
        """The owner as "platform:id", for the audit log and turns."""
        return f"{BUILT_IN}:{self.visitor.sender}"

    def query(self, name: str, default: str = "") -> str:
        """Return a parameter of the address, without spaces around it."""
        return self.request.query.get(name, default).strip()

    def chosen(self, known: Mapping[str, T]) -> tuple[T, str]:
        """Return the meaning of the pressed button, and its object.

        Raises:
            GatewayError: The form has no such button.
        """
        if (what := self.form.get("do", "")) not in known:
            raise GatewayError("Nothing was chosen that can be done.")
        return known[what], self.form.get("whom", "")

    def position(self, name: str) -> int | None:
        """Return the row that a page of a list begins after; None for its first page."""
        return id_in(self.query(name))

    def pair(self, name: str) -> tuple[int, int] | None:
        """Return a row of two numbers, as in "7.2"; None for the first page."""
        first, second = (id_in(part) for part in self.query(name).partition(".")[::2])
        return None if first is None or second is None else (first, second)

    def number(self, name: str) -> int:
        """Return a number that is part of the path.

        Raises:
            Missing: It is not a number.
        """
        if (number := id_in(self.names[name])) is None:
            raise Missing(f"{self.names[name]} is no number.")
        return number


@dataclass(frozen=True, slots=True)
class Shown:
    """A page that is shown.

    Attributes:
        template: Its file in gateway/console/templates.
        values: For the template, which fails if one is missing.
        title: If it differs from that in the register.
        refused: Why nothing was changed, if a form is shown again; the status is 409 then.
    """

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """The path that an action leads to, and a text that is shown there once."""

    to: str
    said: str = ""
    failed: bool = False


Result: TypeAlias = Shown | Moved | web.StreamResponse
"""The result of a page; a response of its own is sent unchanged (a file)."""
Handler: TypeAlias = Callable[[Ask], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class Registered:
    """A page or an action.

    Attributes:
        path: With names in braces for variable parts.
        title: Of a page; empty for an action.
        group: Of the menu; None for a page that others lead to.
    """

    method: Literal["GET", "POST"]
    path: str
    title: str
    group: MenuGroup | None
    handler: Handler


REGISTER: list[Registered] = []


def page(path: str, title: str, group: MenuGroup | None = None) -> Callable[[Handler], Handler]:
    """Register a page; the menu has the pages of a group in the order of registration."""
    return lambda handler: _registered(Registered("GET", path, title, group, handler))


def action(path: str) -> Callable[[Handler], Handler]:
    """Register an action, to which forms are posted."""
    return lambda handler: _registered(Registered("POST", path, "", None, handler))


def _registered(entry: Registered) -> Handler:
    REGISTER.append(entry)
    return entry.handler


PAGE = 50
"""Rows of a page of a list; one more is read to find out whether there is another page."""


def listed(rows: Sequence[T]) -> Sequence[T]:
    """Return the rows to show of those that were read."""
    return rows[:PAGE]


def pages(
    path: str,
    rows: Sequence[T],
    key: Callable[[T], object],
    after: object,
    filters: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the addresses of the next page of a list and of the first one, or "".

    A page begins after the last row of the page before it, so new rows move nothing.

    Args:
        rows: As they were read, one more than is shown if there is another page.
        key: Names a row, for `after`.
        after: The row before this page; empty for the first page.
        filters: Other parameters of the address.
    """
    asked = {name: value for name, value in (filters or {}).items() if value}
    following = asked | {"after": str(key(rows[PAGE - 1]))} if len(rows) > PAGE else {}
    first = f"{path}?{urlencode(asked)}" if asked else path
    return {
        "older": f"{path}?{urlencode(following)}" if following else "",
        "first": first if after else "",
    }
