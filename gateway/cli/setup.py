"""First steps: `parley setup` asks for the settings of a first answer, tests and writes them.

Nothing is written before the last question. `--from FILE --yes` reads the answers from a file.
`parley import` imports the data of another agent.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from adapters.registry import Platform
from agent.safety.threats import reveal_invisible
from gateway.cli.common import AsJson, loaded, say, show_json, warn
from gateway.errors import GatewayError
from gateway.settings.editing import OWNER_ONLY
from gateway.settings.loading import home_of
from gateway.setup import questions
from gateway.setup.checks import check_accounts, check_model
from gateway.setup.hermes import Import, take_over
from gateway.setup.hermes_home import HermesHome, Line
from gateway.setup.questions import (
    CHOICES,
    Answers,
    Keeping,
    SetupQuestion,
    Target,
    changed_keys,
    is_secret,
    read_answers,
    secrets_to_move,
)
from gateway.setup.writing import SECRETS, WrittenSettings, refuse_unwritable, write
from gateway.storage.database import location_of
from gateway.storage.migrations import open_database
from gateway.supervision.credentials import Checked, checked_lines

WRITTEN, REFUSED, UNSURE = 0, 2, 3
"""Exit codes: written and tested; refused, nothing written; written, but not fully tested."""
STYLES = {"✓": "green", "✗": "red", "!": "yellow", "…": "yellow", "?": "dim"}

setup_app = typer.Typer(add_completion=False)


@setup_app.command("setup")
def setup(
    context: typer.Context,
    *,
    answers: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A file of answers.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask no questions; only with --from.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Report as JSON; only with --from.")] = False,
) -> None:
    """Choose a model and platforms, test them, and write parley.yaml.

    Each answer can be skipped; nothing is written before the end. With --from, exit code 0: written
    and tested; 1: cannot be read or written; 2: a key or token was refused, nothing written; 3:
    written, but not fully tested, or a platform's feature is still off.
    """
    refuse_unwritable(Target(home_of(context.find_root().params.get("home"))))
    found = loaded(context)
    target = Target(found.settings.home, found.config_file)
    if answers is not None:
        raise typer.Exit(_from_file(target, read_answers(answers), yes=yes, json=json))
    if yes or json:
        raise typer.BadParameter("is of use only with --from", param_hint="--yes, --json")
    if not sys.stdin.isatty():
        raise GatewayError("parley setup asks questions; without a terminal: --from FILE --yes")
    _Wizard(target).run()


def _from_file(target: Target, draft: Answers, *, yes: bool, json: bool) -> int:
    # Read or run nothing that the file refers to before the user agrees.
    question = "Read the secrets that the file names, run its commands for them, and try them?"
    if not yes and not (sys.stdin.isatty() and typer.confirm(question, default=False)):
        warn("nothing was tried or written: --yes reads the file's secrets and runs their commands")
        return REFUSED
    settings = target.load(draft.values).settings

    async def check_all() -> list[Checked]:
        model, accounts = await asyncio.gather(
            check_model(settings.model), check_accounts(settings)
        )
        return [model, *accounts]

    checked = asyncio.run(check_all())
    refused = any(each.is_wrong for each in checked)
    written = None
    if not json:
        _show(checked)
    if not refused and (yes or _agreed(target, draft)):
        written = write(target, draft)
    tried = all(each.outcome == "accepted" and not each.lacks for each in checked)
    code = REFUSED if refused or written is None else WRITTEN if tried else UNSURE
    if json:
        show_json(_report(checked, draft, written))
    elif written is None:
        warn("nothing was written")
    else:
        _tell(written)
    return code


def _report(
    checked: Sequence[Checked], draft: Answers, written: WrittenSettings | None
) -> dict[str, Any]:
    return {
        "written": None if written is None else str(written.file),
        "keys": [*draft.values],
        "secrets": [] if written is None else [str(each) for each in written.secrets],
        "variables": {} if written is None else written.variables,
        "checks": [asdict(each) for each in checked],
    }


def _agreed(target: Target, draft: Answers) -> bool:
    """Show the changes of an existing file and ask for consent."""
    changes = changed_keys(target, draft) if target.file.exists() else []
    if not changes:
        return True
    say(f"\n{target.file} is there already. What changes in it:")
    for line in changes:
        say(f"  {line}")
    return sys.stdin.isatty() and typer.confirm("Write that?", default=True)


def _show(checked: Sequence[Checked]) -> None:
    for line in checked_lines(checked):
        say(line, STYLES.get(line.strip()[0], ""))


def _tell(written: WrittenSettings) -> None:
    say(f"\nWritten: {written.file}", "green")
    if written.is_closed:
        say(f"  it {OWNER_ONLY}")
    for file in written.secrets:
        say(f"  a secret is in {file}")
    for variable in written.variables.values():
        say(f"  set {variable} in the environment of `parley run`")


class _Wizard:
    """The questions in the terminal."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._draft = Answers()
        self._greetings: list[Checked] = []

    def run(self) -> None:
        """Ask the questions, write the answers, and print how to start."""
        say(f"Parley's settings: {self._target.file}")
        say("Enter skips a question. Nothing is written before the end; Ctrl-C ends it.", "dim")
        self._ask_for_model()
        for platform in questions.platforms_asked_about():
            self._ask_for_account(platform)
        self._ask_for_owner()
        self._ask_for_keeping()
        if not self._draft.values and self._draft.keeping == "yaml":
            say("\nNothing was changed.")
            return
        if not _agreed(self._target, self._draft):
            say("Nothing was written.")
            return
        _tell(write(self._target, self._draft))
        say(f"\nStart it: {sys.argv[0]} run", "bold")
        say("  It prints a link to the web chat, and the code that makes you its owner.")
        say("  To run it as a service: docs/operations.md, As a service.")
        for each in self._greetings:
            if each.greeting:
                say(f"  {each.bot}: {each.greeting}CODE sends the code for you")

    def _ask_for_model(self) -> None:
        now = self._target.load()
        model = now.settings.model
        say("\nThe model that answers", "bold")
        if now.origins["model.provider"] != "default":
            say(f"  now: {model.provider} ({now.origins['model.provider']})", "dim")
        for number, words in enumerate(CHOICES.values(), start=1):
            say(f"  {number}  {words}")
        while (provider := self._choice()) is not None:
            given = _answers_to(questions.of_provider(provider, now))
            questions.take_model(self._draft, provider, given, now)
            if self._is_kept(questions.MODEL, {}):
                return

    @staticmethod
    def _choice() -> str | None:
        known = [*CHOICES]
        while text := _ask("Which one (number or name)"):
            if text.isdecimal() and 1 <= int(text) <= len(known):
                return known[int(text) - 1]
            if text.lower() in CHOICES:
                return text.lower()
            say(f"  a number from 1 to {len(known)}")
        return None

    def _ask_for_account(self, platform: Platform) -> None:
        blocks = self._target.load().settings.platforms.accounts(platform.name)
        say(f"\n{platform.title}", "bold")
        if len(blocks) > 1:
            say(f"  {len(blocks)} accounts are set up; change them in the file", "dim")
            return
        if blocks and blocks[0].is_on:
            say("  it is set up; a new token replaces the one that is there", "dim")
        before, asked = dict(self._draft.values), questions.of_platform(platform)
        while given := _answers_to(asked):
            questions.take(self._draft, asked, given)
            if self._is_kept(platform.name, before):
                return

    def _is_kept(self, section: str, before: Mapping[str, Any]) -> bool:
        """Test the answers and show the result; discard them unless the user keeps them."""
        say("  asking …", "dim")
        checked = asyncio.run(questions.try_answers(self._target, self._draft, section))
        _show([checked])
        keep = "  It could not be tried. Keep it?"
        if not checked.is_wrong and (
            checked.outcome == "accepted" or typer.confirm(keep, default=True)
        ):
            self._greetings.append(checked)
            return True
        self._draft.values = dict(before)
        say("  Please try again, or skip with Enter.")
        return False

    def _ask_for_owner(self) -> None:
        now = self._target.load(self._draft.values)
        owners = " ".join(now.settings.access.owners)
        if not owners and not now.settings.platforms.on():
            return
        say("\nThe owner", "bold")
        if owners:
            say(f"  now: {owners} ({now.origins['access.owners']}); spaces between several", "dim")
        else:
            say("  Send the code of the next start to the bot to become its owner.", "dim")
        question = "Who, as PLATFORM:ID" if owners else "Or name yourself, as PLATFORM:ID"
        while (text := _ask(question, owners)) != owners:
            self._draft.values["access.owners"] = text.split()
            try:
                self._target.load(self._draft.values)
            except GatewayError as exc:
                del self._draft.values["access.owners"]
                say(f"  ✗ {exc}", "red")
            else:
                return

    def _ask_for_keeping(self) -> None:
        kept = secrets_to_move(self._target, replace(self._draft, keeping="files"))
        if not any(is_secret(name) for name in (*self._draft.values, *kept)):
            return
        folder = self._target.home / SECRETS
        say("\nWhere keys and tokens are kept", "bold")
        say(f"  1  in {self._target.file.name}, which only you can read")
        say(f"  2  in a file each in {folder}")
        say("  3  in environment variables, which you set yourself")
        ways: dict[str, Keeping] = {"1": "yaml", "2": "files", "3": "env"}
        while True:
            try:
                self._draft.keeping = ways[_ask("Which one", "1")]
                secrets_to_move(self._target, self._draft)
            except KeyError:
                say("  a number from 1 to 3")
            except GatewayError as exc:
                say(f"  ✗ {exc}", "red")
            else:
                return


def _ask(question: str, default: str = "", *, hidden: bool = False) -> str:
    """Return an answer without surrounding spaces; Enter gives the default."""
    text: str = typer.prompt(
        question, default=default, show_default=bool(default), hide_input=hidden
    )
    return text.strip()


def _answers_to(asked: Sequence[SetupQuestion]) -> dict[str, str]:
    """Return the answers by field; empty if the required first one was skipped."""
    given: dict[str, str] = {}
    for question in asked:
        given[question.field] = _answer_to(question)
        if question.is_required and not any(given.values()):
            return {}
    return given


def _answer_to(question: SetupQuestion) -> str:
    if not question.is_secret:
        return _ask(question.title, question.default)
    where = ": ".join(filter(None, (question.found_at, question.steps)))
    hints = "not shown" + (f", from {where}" if where else "")
    hints += f"; Enter takes {question.default}" if question.default else ""
    while text := _ask(f"{question.title} ({hints})", hidden=True):
        if not (problem := questions.wrong(question, text)):
            return text
        say(f"  ✗ {problem}", "red")
    return ""


import_app = typer.Typer(no_args_is_help=True)

_STYLES = {"taken": "green", "known": "dim", "left out": "yellow"}


@import_app.command("hermes")
def import_hermes(
    context: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The Hermes home, such as ~/.hermes; stays unchanged."),
    ],
    person: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="PLATFORM:ID",
            help="Owner of notes and chatless sessions; by default the first owner, or web.",
        ),
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Ask no questions.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the plan.")] = False,
    json: AsJson = False,
) -> None:
    """Import settings, SOUL.md, notes, skills and sessions; existing data stays.

    The texts are shown first. With SQLite, stop the gateway first. A second run completes the
    first.
    """
    task = Import(HermesHome(folder), loaded(context).settings, person)
    if not (yes or dry_run):
        _show_lines(asyncio.run(take_over(task, None)))
        if not sys.stdin.isatty():
            raise GatewayError("nothing was imported: --yes accepts the texts shown")
        typer.confirm("\nTake over what is shown above?", default=False, abort=True)
    lines = asyncio.run(take_over(task, None) if dry_run else _taken_over(task))
    if json:
        show_json([asdict(line) for line in lines])
        return
    _show_lines(lines)
    if dry_run:
        say("\nNothing was changed: this was a dry run.", "bold")


async def _taken_over(task: Import) -> list[Line]:
    settings = task.settings
    async with open_database(location_of(settings), settings.home) as database:
        return await take_over(task, database)


def _show_lines(lines: Sequence[Line]) -> None:
    for part in ("settings", "secrets", "files", "memory", "skills", "sessions"):
        found = [line for line in lines if line.part == part]
        if found:
            say(f"\n{part}", "bold")
        for line in found:
            note = f": {line.note}" if line.note else ""
            say(f"  {line.outcome:<9} {line.what}{note}", _STYLES[line.outcome])
            shown = reveal_invisible(line.text) if line.outcome == "taken" else ""
            # Not `splitlines`, which also splits at characters that are escaped here.
            for each in shown.split("\n") if shown else ():
                say(f"            | {each}", "dim")
