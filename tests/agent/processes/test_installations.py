"""The readable part of a program's own installation, and what is never readable."""

import os
import sys
from pathlib import Path

import pytest

from agent.processes.installations import leads_through, of_program, of_this_python


class Machine:
    """A small machine: Ann's home, Parley's below it, and installations of programs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ann = root / "home/ann"
        self.parley = self.ann / ".local/share/parley"
        self.parley.mkdir(parents=True)
        self.secret(self.ann / ".ssh/id")
        self.secret(self.parley / "parley.db")

    def file(self, name: str, text: str = "\x7fELF") -> Path:
        """Write a program in Ann's home, with a library next to its folder."""
        path = self.ann / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        if path.parent.name == "bin":
            (path.parent.parent / "lib").mkdir(exist_ok=True)
        return path

    def link(self, name: str, target: str | Path) -> Path:
        """Make a link in Ann's home."""
        path = self.ann / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        return path

    def secret(self, path: Path) -> None:
        """Write files that no program may read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("secret")

    def given(self, program: Path, *writable: str, path: str = "") -> set[str]:
        """Return the paths readable by a program, relative to Ann's home."""
        closed = [self.ann / each for each in writable]
        found = [Path(each) for each in of_program(program, path, self.parley, closed)]
        for each in found:
            for secret in (self.ann / ".ssh/id", self.parley / "parley.db"):
                assert not secret.resolve().is_relative_to(each.resolve())
        return {os.path.relpath(each, self.ann) for each in found}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with nothing installed."""
    found = Machine(tmp_path.resolve())
    monkeypatch.setenv("HOME", str(found.ann))
    return found


def test_a_program_has_its_prefix(machine: Machine) -> None:
    """Programs and libraries, two levels above its file, and nothing else there."""
    node = machine.file(".nvm/versions/node/v20/bin/node")
    machine.secret(machine.ann / ".nvm/versions/node/v20/etc/npmrc")
    prefix = ".nvm/versions/node/v20"
    assert machine.given(node) == {f"{prefix}/bin/node", f"{prefix}/bin", f"{prefix}/lib"}


def test_a_link_leads_to_an_installation(machine: Machine) -> None:
    """npx: a script in the modules of node, whose interpreter PATH names."""
    prefix = ".nvm/versions/node/v20"
    machine.file(f"{prefix}/bin/node")
    module = f"{prefix}/lib/node_modules/npm/bin/npx-cli.js"
    machine.file(module, "#!/usr/bin/env node\n")
    machine.link(f"{prefix}/bin/npx", "../lib/node_modules/npm/bin/npx-cli.js")
    npx = machine.link("tools/npx", f"../{prefix}/bin/npx")
    given = machine.given(npx, path=str(machine.ann / prefix / "bin"))
    assert {f"{prefix}/bin", f"{prefix}/lib", f"{prefix}/bin/node", module} <= given


def test_a_virtual_environment_leads_to_its_python(machine: Machine) -> None:
    """By its links, or for a copy by its pyvenv.cfg."""
    base = ".pyenv/versions/3.12"
    machine.file(f"{base}/bin/python3")
    config = f"home = {machine.ann / base / 'bin'}\nversion = 3.12\n"
    for name in ("linked", "copied"):
        (machine.ann / name).mkdir()
        (machine.ann / name / "pyvenv.cfg").write_text(config)
    linked = machine.link("linked/bin/python", machine.ann / base / "bin/python3")
    copied = machine.file("copied/bin/python")
    script = machine.file("linked/bin/serve", f"#!{linked}\n")
    for program in (linked, copied, script):
        prefix = program.parent.parent.name
        given = machine.given(program)
        assert {f"{base}/bin", f"{base}/lib", f"{prefix}/bin", f"{prefix}/pyvenv.cfg"} <= given


def test_a_shim_has_the_versions_that_it_chooses_from(machine: Machine) -> None:
    """The program behind all shims of pyenv, and its versions; not the rest of its folder."""
    machine.file(".pyenv/versions/3.12/bin/python3")
    machine.file(".pyenv/libexec/pyenv", "#!/bin/bash\n")
    machine.secret(machine.ann / ".pyenv/.git/config")
    shim = machine.file(".pyenv/shims/python3", "#!/usr/bin/env bash\n")
    script = machine.file("srv/serve", "#!/usr/bin/env python3\n")
    needed = {f".pyenv/{each}" for each in ("shims/python3", "shims", "libexec", "versions")}
    assert machine.given(shim) == needed
    assert machine.given(script, path=str(shim.parent)) == needed | {"srv/serve"}


def test_a_module_of_node_has_the_modules_that_it_lies_in(machine: Machine) -> None:
    """The outermost folder of them: they need each other. Nothing else of the project."""
    machine.secret(machine.ann / "project/.env")
    machine.file("project/node_modules/a/node_modules/b/cli.js", "#!/bin/sh\n")
    tool = machine.link("project/node_modules/.bin/b", "../a/node_modules/b/cli.js")
    assert "project/node_modules" in machine.given(tool)
    assert "project" not in machine.given(tool)


@pytest.mark.parametrize(
    ("program", "given"),
    [
        # The prefix is a home folder: only libraries.
        ("bin/tool", {"bin/tool", "lib"}),
        # The folder contains PARLEY_HOME; uvx starts uv, which is next to it.
        (".local/bin/uvx", {".local/bin/uvx", ".local/bin", ".local/lib"}),
        # No installation at all.
        ("scripts/run", {"scripts/run"}),
        # What is Parley's own.
        (".local/share/parley/bin/tool", set()),
    ],
)
def test_neither_a_home_nor_parleys_is_given(
    machine: Machine, program: str, given: set[str]
) -> None:
    """Even two levels above a program."""
    assert machine.given(machine.file(program)) == given


@pytest.mark.parametrize(
    ("written", "writable"),
    [("app/bin/tool", "app"), ("app/bin/tool", "app/bin"), ("app/bin/tool", "app/bin/tool")],
)
def test_what_a_program_may_write_gives_it_nothing(
    machine: Machine, written: str, writable: str
) -> None:
    """It could have made a link, or a script, that leads to a person's own folders."""
    machine.file(".ssh/bin/id")
    for make in (
        lambda: machine.link(written, machine.ann / ".ssh/bin/id"),
        lambda: machine.file(written, f"#!{machine.ann / '.ssh/bin/id'}\n"),
    ):
        program = make()
        assert not {each for each in machine.given(program, writable) if ".ssh" in each}
        program.unlink()


def test_nor_does_a_way_through_it(machine: Machine) -> None:
    """The operator's link leads through a folder that the program may write."""
    machine.file(".ssh/bin/id")
    machine.link("app/current", machine.ann / ".ssh")
    program = machine.link("tools/tool", machine.ann / "app/current/bin/id")
    assert machine.given(program, "app") == set()
    through = machine.link("way", machine.ann / "app/current")
    assert machine.given(through / "bin/id", "app") == set()


def test_libraries_that_it_may_write_are_not_given_a_second_time(machine: Machine) -> None:
    """The folder includes them already."""
    tool = machine.file("opt/bin/tool")
    assert machine.given(tool, "opt/lib") == {"opt/bin/tool", "opt/bin"}


@pytest.mark.parametrize("script", ["#!/usr/bin/env -S A=b no-such\n", "#!\n", "#!relative/sh\n"])
def test_scripts_without_an_interpreter_here(machine: Machine, script: str) -> None:
    """The start names the missing file."""
    assert machine.given(machine.file("x/run", script)) == {"x/run"}


def test_links_that_lead_to_themselves_end(machine: Machine) -> None:
    """A broken installation stops no start; a missing file is not readable."""
    assert machine.given(machine.link("x/a", "a")) == set()
    assert machine.given(machine.ann / "nowhere/tool") == set()


def test_programs_of_the_system_need_nothing() -> None:
    """Every program may read them."""
    assert of_program(Path("/usr/bin/env"), None, Path("/nowhere")) == []


def test_the_python_of_this_process_is_readable() -> None:
    """Its standard library, its packages and its program, or they are the system's."""
    given = [Path(each) for each in (*of_this_python(), "/usr", "/lib", "/bin")]
    for needed in (os.__file__, sys.executable, Path(sys.executable).resolve(), pytest.__file__):
        assert leads_through(Path(needed), given)
    assert not {Path("~").expanduser(), Path(sys.base_prefix).parent} & {*given}
