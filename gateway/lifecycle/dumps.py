"""Copies of a database on a server, by PostgreSQL's own programs: pg_dump and pg_restore.

Where they are not installed the caller is told so. What is secret in the URL goes into their
environment, never into their arguments, which all users of a machine can read.
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.errors import StorageUnavailable
from gateway.storage.database import DatabaseServer

LOOK_EVERY_S = 0.25
_VARIABLES = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "dbname": "PGDATABASE",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "passfile": "PGPASSFILE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
}
"""Source: https://www.postgresql.org/docs/current/libpq-envars.html"""


def dump(server: DatabaseServer, target: Path, stopped: Callable[[], bool]) -> None:
    """Write a copy of one moment, while replicas run, and read its table of contents once.

    Raises:
        StorageUnavailable: The program is not there, or fails.
    """
    copy = ["--format=custom", f"--file={target}"]
    _run("pg_dump", copy, server, stopped)
    check(target)


def check(dumped: Path) -> None:
    """Read the table of contents of a copy.

    Raises:
        StorageUnavailable: It is none, or is cut.
    """
    _run("pg_restore", ["--list", "--file=/dev/null", str(dumped)], None, lambda: False)


def restore(server: DatabaseServer, dumped: Path) -> None:
    """Put a copy into an empty database: all of it, or nothing.

    Raises:
        StorageUnavailable: The program is not there, or fails.
    """
    whole = ["--single-transaction", "--exit-on-error", "--no-owner"]
    name = _environment(server)["PGDATABASE"]
    _run("pg_restore", [*whole, f"--dbname={name}", str(dumped)], server, lambda: False)


def place_of(server: DatabaseServer) -> str:
    """Return where a database is: `host:port/name`, and nothing that is secret."""
    found = _environment(server)
    host = found.get("PGHOSTADDR") or found.get("PGHOST", "")
    return f"{host}:{found.get('PGPORT', '')}/{found['PGDATABASE']}"


def _environment(server: DatabaseServer) -> dict[str, str]:
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    found = conninfo_to_dict(server.direct.get_secret_value())
    names = {_VARIABLES[key]: str(value) for key, value in found.items() if key in _VARIABLES}
    return {"PGDATABASE": names.get("PGUSER", "postgres")} | names


def _run(
    name: str,
    arguments: Sequence[str],
    server: DatabaseServer | None,
    stopped: Callable[[], bool],
) -> None:
    program = shutil.which(name)
    if program is None:
        raise StorageUnavailable(
            f"{name} is not installed here: install PostgreSQL's client programs of the server's"
            " version, or copy the database where they are (docs/operations.md, *Backup and"
            " restore*)"
        )
    environment = {"PATH": str(Path(program).parent), "PGCONNECT_TIMEOUT": "10"}
    if server is not None:
        environment |= _environment(server)
    with subprocess.Popen(  # noqa: S603 - a program of PostgreSQL's, and no shell
        [program, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as running:
        said = _said(running, stopped)
    if running.returncode != 0:
        lines = said.decode(errors="replace").strip().splitlines() or ["it was ended"]
        raise StorageUnavailable(f"{name}: {lines[-1]}")


def _said(running: subprocess.Popen[bytes], stopped: Callable[[], bool]) -> bytes:
    """Wait for the end of a program, or end it; return its complaints."""
    while True:
        try:
            return running.communicate(timeout=LOOK_EVERY_S)[1]
        except subprocess.TimeoutExpired:
            if stopped():
                running.kill()
