"""Homes to be examined: a sound one, and what is planted in it."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import Table
from sqlalchemy.dialects import sqlite

from gateway.backup.backups import MANIFEST
from gateway.cli import common
from gateway.errors import GatewayError, SettingsError
from gateway.findings.finding import Evidence
from gateway.findings.report import FINDINGS, Row, Shown, report
from gateway.settings.loading import load_settings
from gateway.storage import maintenance
from gateway.storage.search import index
from gateway.storage.sqlite_file import connect
from gateway.supervision.credentials import Checked
from gateway.supervision.vitals import LiveFacts
from gateway.wiring import build_line

SQLITE = sqlite.dialect()
SOUND: Mapping[str, Any] = {
    "model": {"provider": "anthropic", "name": "claude-sonnet-5-5", "api_key": "env:A_KEY"},
    "fallbacks": [{"provider": "anthropic", "name": "claude-haiku-5-5", "api_key": "env:B_KEY"}],
    "auxiliary": {"compression": {"model": "claude-haiku-5-5"}},
    "budget": {"daily_usd": 5},
    "retention": {"transcript_days": 365, "files_days": 90},
    "backup": {"to": "backups"},
    "tools": {"enabled": ["todo"]},
    "web": {"port": 0},
}
"""Settings of which no check has anything to say."""
ENVIRONMENT = {"A_KEY": "sk-ant-" + "a" * 40, "B_KEY": "sk-" + "b" * 40}
READY: Mapping[str, object] = {
    "ready": True,
    "database": "writable",
    "descriptors": "free",
    "adapters": {"telegram:default": "connected"},
    "accounts": {"telegram:default": {"silent_s": None}},
    "findings": [],
}


@dataclass
class Patient:
    """A home, its settings, and what is known without it.

    Attributes:
        changes: Of the settings, dotted key → value.
        afterwards: What is to be done at the end.
    """

    home: Path
    changes: dict[str, Any] = field(default_factory=dict)
    running: Mapping[str, object] | None = None
    hangs: str = ""
    live: LiveFacts | None = None
    asked: bool = True
    clock: str = ""
    keys: Sequence[Checked] = ()
    accounts: Any = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))
    deep: bool = False
    crowding: str = ""
    left_out: Sequence[str] = ()
    afterwards: list[Callable[[], None]] = field(default_factory=list)

    def set(self, **changes: Any) -> None:
        """Change settings; `__` stands for the dot."""
        self.changes |= {key.replace("__", "."): value for key, value in changes.items()}

    def run(self, *statements: str) -> None:
        """Execute statements in its database, outside of transactions."""
        with closing(sqlite3.connect(self.home / "parley.db", isolation_level=None)) as raw:
            for each in statements:
                raw.execute(each)

    def enter(self, table: Table, **values: Any) -> None:
        """Enter a row; it may refer to rows that are not there."""
        statement = table.insert().values(values).compile(dialect=SQLITE)
        with closing(sqlite3.connect(self.home / "parley.db", isolation_level=None)) as raw:
            raw.execute(str(statement), [statement.params[key] for key in statement.positiontup])

    def config(self) -> Path:
        """Write parley.yaml."""
        tree = yaml.safe_load(yaml.safe_dump(dict(SOUND)))
        for key, value in self.changes.items():
            place = tree
            *sections, last = key.split(".")
            for name in sections:
                place = place.setdefault(name, {})
            place[last] = value
        file = self.home / "parley.yaml"
        file.write_text(yaml.safe_dump(tree))
        file.chmod(0o600)
        return file

    @contextmanager
    def facts(self) -> Iterator[Evidence]:
        """Read what there is to look at, as `parley doctor` does; nobody is asked."""
        if not (self.home / "parley.yaml").exists():
            self.config()
        try:
            found = load_settings(environ={**self.environ, "PARLEY_HOME": str(self.home)})
        except SettingsError as exc:
            yield Evidence(self.home, problems=tuple(str(exc).splitlines()))
            return
        known: dict[str, Any] = {
            "line": build_line(found.settings),
            "asked": self.asked,
            "clock": self.clock,
            "keys": self.keys,
            "accounts": self.accounts,
            "running": self.running,
            "hangs": self.hangs,
            "live": self.live,
            "deep": self.deep,
            "left_out": self.left_out,
            "crowding": self.crowding,
        }
        try:
            with common.opened(found.settings) as conn:
                yield Evidence(self.home, found, opened=conn, **known)
                return
        except GatewayError as exc:
            trouble = str(exc)
        yield Evidence(self.home, found, database_trouble=trouble, **known)

    def rows(self) -> list[Row]:
        """Look for all findings."""
        with self.facts() as facts:
            return report(FINDINGS.values(), facts)

    def result(self, name: str) -> list[Row]:
        """Look for one finding; the worst row first."""
        with self.facts() as facts:
            return report([FINDINGS[name]], facts)

    def levels(self) -> dict[str, Shown]:
        """Return what each finding came to, but for what is fine."""
        return {row.id: row.level for row in reversed(self.rows()) if row.level != "fine"}


def sound(home: Path, migrated: Path) -> Patient:
    """Return a home in which all is well."""
    home.mkdir(mode=0o700)
    shutil.copy(migrated, home / "parley.db")
    (home / "parley.db").chmod(0o600)
    with closing(connect(home / "parley.db")) as conn, conn.begin():
        index.empty(conn)
    backup = home / "backups" / f"parley-{datetime.now(UTC):%Y%m%dT%H%M%S}Z"
    backup.mkdir(mode=0o700, parents=True)
    told = {"files": {}, "version": "0.6.0", "database": "parley.db", "revision": None}
    (backup / MANIFEST).write_text(json.dumps(told))
    return Patient(home, running=READY)


Plant = Callable[[Patient], None]


def revision_of(home: Path) -> str | None:
    """Return the revision of a home's database."""
    return maintenance.current(home / "parley.db")
