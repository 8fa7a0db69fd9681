"""Where the program of an MCP server is kept: the walls around it, and a directory of its own.

It is confined like a command of the tool `terminal`: it sees the system's programs, what its
settings name, and its directory below PARLEY_HOME, which it alone can write; nothing else of
Parley's. Without confinement it may do whatever Parley may.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.processes.installations import leads_through, of_program, of_this_python
from agent.processes.sandbox import choose
from agent.processes.walls import Walls
from agent.settings import McpServerSettings, SandboxSettings

TEMPORARY = ".tmp"
"""Its TMPDIR, in its directory."""


@dataclass(frozen=True, slots=True)
class Quarters:
    """What the programs of all servers share.

    Attributes:
        home: PARLEY_HOME, which none of them may read.
        folder: Where each has a directory of its own.
    """

    sandbox: SandboxSettings
    home: Path
    folder: Path

    def prepare(self, name: str, server: McpServerSettings, path: str | None) -> Walls:
        """Make the directory of a server, and return the walls around its program. Blocking.

        Args:
            path: Where its command is looked for, as in PATH.

        Raises:
            OSError: It cannot be confined, or has no directory.
        """
        # Undecided means confined: the code that starts a program must decide (`with_walls`).
        if server.confined is False:
            return Walls("none", "" if server.cwd is None else str(server.cwd))
        chosen = choose(self.sandbox)
        if isinstance(chosen, str):
            text = f"it cannot be confined: {chosen}; tools.mcp.{name}.confined: false starts it so"
            raise OSError(text)
        own = self.folder / name
        (own / TEMPORARY).mkdir(mode=0o700, parents=True, exist_ok=True)
        own.chmod(0o700)
        writable = _outermost(server.writable)
        return Walls(
            backend=chosen.backend,
            tool=chosen.tool,
            directory=str(server.cwd or own),
            readable=[str(each) for each in self._readable(server, path)],
            writable=[*map(str, writable), str(own)],
            network=server.network,
        )

    def _readable(self, server: McpServerSettings, path: str | None) -> Iterator[Path]:
        """Yield the program, the files among its arguments, and what is named."""
        named = (*server.readable, *([] if server.cwd is None else [server.cwd]))
        writable = _outermost(server.writable)
        yield from (each for each in named if not leads_through(each, writable))
        yield from map(Path, of_this_python())
        command = shutil.which(server.command or "", path=path)
        if command and Path(command).is_absolute():
            yield from map(Path, of_program(Path(command), path, self.home, writable))
        for text in server.args:
            if Path(text).is_absolute() and Path(text).is_file():
                yield from self._not_ours(Path(text), writable)

    def _not_ours(self, file: Path, writable: Sequence[Path]) -> Iterator[Path]:
        """Yield a file, and where it leads to; not what lies in PARLEY_HOME."""
        if not leads_through(file, [self.home, *writable]):
            yield from dict.fromkeys((file, file.resolve()))


def _outermost(folders: Sequence[Path]) -> list[Path]:
    return [each for each in folders if not {*each.parents} & {*folders}]
