"""`parley config`, `adapter`, `engines` and `prompt`: show, check and change settings.

A running gateway applies the changes. `prompt show` prints the resulting system prompt; it is the
only command here that runs a context engine's code.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import orjson
import structlog
import typer
import yaml
from rich.text import Text

from agent.messages import ToolSchema
from agent.plugins import engines
from agent.plugins.registry import DEFAULT
from agent.prompt.system import LAYERS, SystemPrompt
from agent.safety.redaction import MASK, Redactor, printable
from agent.settings import ReferencedSecret
from agent.tokens import estimate_tokens, estimate_tools
from gateway import wiring
from gateway.backup.restoring import would_run_by
from gateway.cli.common import (
    AsJson,
    conversation_id,
    opened,
    out,
    say,
    settings_of,
    show_json,
    table,
    warn,
)
from gateway.cli.common import loaded as read
from gateway.context import window
from gateway.context.prompts import Snapshot
from gateway.errors import GatewayNotRunning, NotFound, SettingsError
from gateway.http import control
from gateway.settings.editing import OWNER_ONLY, holds_secret, located, set_values
from gateway.settings.loading import (
    PASSWORDS,
    Loaded,
    file_of,
    home_of,
    load_settings,
    read_foreign,
)
from gateway.settings.references import unresolved
from gateway.settings.rules import contradictions
from gateway.settings.sources import former, path_of, shown
from gateway.settings.tree import mark_of, named, plain
from gateway.setup.hermes_settings import hint
from gateway.storage.conversation import sessions
from gateway.storage.reports import history
from gateway.supervision.credentials import reload_lines

_redactor = Redactor()
_ADDRESSES = ("storage.url", "storage.direct_url")
# Query parameters with passwords; a password before the host is found by its position.
_PASSWORD = re.compile(rf"([?&](?:{'|'.join(PASSWORDS)})=)[^&]*")
ENGINE = "context.engine"

config_app = typer.Typer(no_args_is_help=True)
adapter_app = typer.Typer(no_args_is_help=True)
engines_app = typer.Typer(no_args_is_help=True)
prompt_app = typer.Typer(no_args_is_help=True)


def settings_keys(incomplete: str) -> list[str]:
    """Complete a settings key; nothing if the settings cannot be read."""
    try:
        return [key for key in load_settings().origins if key.startswith(incomplete)]
    except SettingsError:
        return []


@config_app.command("show")
def config_show(
    context: typer.Context,
    json: AsJson = False,
    running: Annotated[
        bool, typer.Option("--running", help="Show the running gateway's settings.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show how the file differs from the settings in use.")
    ] = False,
) -> None:
    """Print every setting with its value, when a change takes effect, and its origin.

    Secrets are masked or shown as references; a running gateway's as fingerprints.
    """
    if diff:
        changes = _asked(context, "differences")
        lines = [f"{x['key']}: {x['before']} → {x['after']} ({x['mark']})" for x in changes]
        if json:
            show_json(changes)
        else:
            say("\n".join(lines) or "the running gateway uses the settings of the file")
        return
    found = None if running else read(context)
    known = _asked(context, "running") if found is None else rows(found)
    if json:
        show_json(known)
        return
    if found is None:
        show(known)
        return
    show({key: row | {"value": orjson.dumps(row["value"]).decode()} for key, row in known.items()})
    for warning in found.warnings:
        say(f"warning: {warning}", "yellow")


def rows(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """Return every key in tree order with its value, origin and mark.

    Values are JSON data without secrets; a mark says when a change takes effect.
    """
    return {
        key: {
            "value": _address(value) if key in _ADDRESSES else _masked(value),
            "origin": loaded.origins[key],
            "mark": mark_of(path_of(key)),
        }
        for key, value in loaded.values.items()
    }


def _address(value: Any) -> Any:
    """Mask the passwords in a database address; keep the host readable."""
    if value is None or isinstance(value, ReferencedSecret):
        return _masked(value)
    return _redactor.text(_PASSWORD.sub(rf"\1{MASK}", value.get_secret_value()))


def _masked(value: Any) -> Any:
    # A plain value may contain a key as well, such as a server's address.
    return plain(value, lambda secret: getattr(secret, "reference", MASK), _redactor.text)


def show(known: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one aligned line per key; highlight keys that are set."""
    widths = max(map(len, known)), min(max(len(row["value"]) for row in known.values()), 40)
    for key, row in known.items():
        style = "dim" if row["origin"] == "default" else ""
        line = Text(f"{key:<{widths[0]}}  ", "cyan")
        line.append(f"{printable(row['value']):<{widths[1]}}  ", style)
        line.append(f"{row['mark']:<9}  {row['origin']}", "dim")
        out.print(line, soft_wrap=True)


def _asked(context: typer.Context, question: control.SettingsQuestion, target: str = "") -> Any:
    # Do not read the settings here: the gateway reports problems with them.
    home = home_of(context.find_root().params.get("home"))
    return asyncio.run(control.ask_settings(home, question, target))


@config_app.command("check")
def config_check(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="A file to check instead of the one in use.")
    ] = None,
) -> None:
    """Check whether a gateway would start with these settings; change nothing.

    Makes no network call. Exit code 1 if it would not start. For a FILE not in use, reads no secret
    and loads no plugin, but lists the programs that it would run.
    """
    chosen = context.find_root().params
    path = file_of(chosen["config"], chosen["home"])
    if file is not None and file.absolute() != path.absolute():
        _check_another(file, home_of(chosen["home"]))
        return
    try:
        found = read(context)
    except SettingsError as exc:
        raise SettingsError("\n".join(located(exc, path))) from exc
    problems, left_out = wiring.tried(found.settings)
    if problems:
        raise SettingsError("\n".join(located(SettingsError("\n".join(problems)), path)))
    for warning in (*found.warnings, *left_out):
        say(f"warning: {warning}", "yellow")
    say(f"{path}: a gateway can start with these settings")


def _check_another(file: Path, home: Path) -> None:
    try:
        settings = read_foreign(file, home)
        values = {name: value for name, (_, value) in named(settings).items()}
        found = contradictions(settings, values)
    except SettingsError as exc:
        raise SettingsError("\n".join(located(exc, file))) from exc
    # The value behind a reference is unknown.
    if wrong := [f"{key}: {text}" for key, text in found if not any(unresolved(values.get(key)))]:
        raise SettingsError("\n".join(located(SettingsError("\n".join(wrong)), file)))
    say(f"{file}: its keys and values are valid. It is not in use, so it was not tried. With it:")
    for line in [*would_run_by(settings)] or ["a gateway runs nothing but itself"]:
        say(f"  {line}")
    say(f"`parley --config {file} config check` tries it: reads its secrets and runs its commands")


@config_app.command("set")
def config_set(
    context: typer.Context,
    key: Annotated[
        str,
        typer.Argument(help="Name as in `parley config show`.", autocompletion=settings_keys),
    ],
    value: Annotated[str, typer.Argument(help="Value as written in the file.")],
    json: AsJson = False,
) -> None:
    """Set a key in the settings file, keeping comments; a running gateway applies it at once.

    An invalid value is not written.
    """
    chosen = context.find_root().params
    file, path = file_of(chosen["config"], chosen["home"]), path_of(key)
    if instead := former(path):
        raise SettingsError(f"{key} is no longer a setting: {instead}")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        parsed = value
    problems: list[SettingsError] = []
    for each in list({repr(each): each for each in (parsed, value)}.values()):
        try:
            is_closed = set_values(file, {path: each}, partial(_check_draft, context, file))
            break
        except SettingsError as exc:
            problems.append(exc)
    else:
        raise problems[0]
    after = read(context)
    origin = after.origins.get(key, "")
    if origin and origin not in {str(file), file.name}:
        warn(f"{key}: {origin} overrides what the file says now")
    try:
        outcome = _asked(context, "reload")
    except GatewayNotRunning:
        outcome = None
    if json:
        show_json({"file": str(file), "key": key, "closed": is_closed, "reload": outcome})
        raise typer.Exit(1 if outcome and outcome["problems"] else 0)
    say(f"{file}: {key} is {shown(each, hidden=holds_secret(path, each))}")
    if is_closed:
        say(f"{file}: {OWNER_ONLY}")
    if outcome is None:
        say("no gateway runs here; the next start uses it")
    else:
        _show_reload(outcome)


def _check_draft(context: typer.Context, file: Path, draft: Path) -> None:
    """Refuse an invalid draft; messages name `file` instead of the draft."""
    home = context.find_root().params["home"]
    try:
        found = load_settings(config=draft, overrides={"home": home}, hint=hint)
        wiring.refuse_unusable(found.settings)
    except SettingsError as exc:
        text = "\n".join(located(exc, draft)).replace(str(draft), file.name)
        raise SettingsError(f"nothing was changed: {text}") from exc


@config_app.command("reload")
def config_reload(
    context: typer.Context,
    json: AsJson = False,
    *,
    secrets: Annotated[
        bool,
        typer.Option("--secrets", help="Reload only secrets, even while the file is invalid."),
    ] = False,
) -> None:
    """Reload settings and secrets in the running gateway and all its replicas.

    Exit code 1 if they are invalid; then nothing changes.
    """
    outcome = _asked(context, "secrets" if secrets else "reload")
    if json:
        show_json(outcome)
        raise typer.Exit(1 if outcome.get("problems") else 0)
    if secrets and not outcome["references"]:
        say("no setting refers to a secret, so there is nothing to read again")
    else:
        _show_reload(outcome)


def _show_reload(outcome: Mapping[str, Any]) -> None:
    if problems := outcome.get("problems"):
        raise SettingsError("\n".join(["nothing was changed:", *problems]))
    say("\n".join(reload_lines(outcome)) or "nothing has changed")


@adapter_app.command("restart")
def adapter_restart(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Account, such as telegram or slack:work.")],
    json: AsJson = False,
) -> None:
    """Restart an account's adapter with its current token; nothing is lost."""
    found = _asked(context, "restart", name)
    if json:
        show_json(found)
    else:
        say("\n".join(found))


@engines_app.command("list")
def engines_list(context: typer.Context, *, json: AsJson = False) -> None:
    """List the context engines (* is active) without running their code."""
    settings = settings_of(context)
    found, wanted = engines.available(settings.home), settings.context.engine
    usable = {info.name: info for info in found if info.problem is None}
    active = usable.get(wanted, usable[DEFAULT])
    if json:
        names = ("name", "source", "description", "offers", "problem")
        show_json([
            {name: getattr(info, name) for name in names} | {"active": info is active}
            for info in found
        ])
    else:
        marks = ["*" if info is active else "!" if info.problem else "" for info in found]
        cells = [
            (mark, info.name, info.source, info.description)
            for mark, info in zip(marks, found, strict=True)
        ]
        out.print(table(("", "name", "source", "description"), cells))
        for info in found:
            if info.problem:
                say(f"! {info.name} ({info.source}) cannot be used: {info.problem}", "yellow")
    if active.name != wanted:
        warn(f"{ENGINE} is {wanted!r}, which cannot be used: {DEFAULT} is active")


@engines_app.command("use")
def engines_use(context: typer.Context, name: str) -> None:
    """Choose the context engine: write `context.engine` into the settings file."""
    before = read(context)
    if wrong := engines.why_unusable(before.settings.home, name):
        raise NotFound(wrong)
    file = before.file
    set_values(file, {("context", "engine"): name})
    say(f"{file}: {ENGINE} is {name}")
    # Read again, since an environment variable may override the file.
    after = read(context)
    if after.settings.context.engine == name:
        say("A running gateway uses it with the next turn.")
    else:
        warn(f"{after.origins[ENGINE]} overrides it with {after.settings.context.engine!r}")


_STABILITIES: dict[str, str] = {layer.name: layer.stability for layer in LAYERS}


@prompt_app.command("show")
def prompt_show(
    context: typer.Context,
    conversation: Annotated[
        int | None,
        typer.Argument(
            parser=conversation_id,
            metavar="ID",
            help="Id from `parley sessions list`; by default a new conversation.",
        ),
    ] = None,
    *,
    whole: Annotated[bool, typer.Option("--text", help="Print the texts as well.")] = False,
) -> None:
    """Print the layers of the system prompt and the tools with token counts, and removed lines."""
    # Log lines about the findings would interrupt the table, which shows them below.
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)
    if conversation is None:
        _show_new(context, whole=whole)
    else:
        _show_stored(context, conversation, whole=whole)


def _show_new(context: typer.Context, *, whole: bool) -> None:
    settings = read(context).settings
    agent = wiring.build_agent(settings, wiring.build_line(settings))
    agent = window.with_engine_tools(agent, wiring.build_context(settings, agent))
    prompts = wiring.build_prompts(settings)
    _print(prompts.typical(agent), agent.tools.schemas, agent.models[0].name, whole=whole)
    for text in unused_files(prompts.files.current):
        say(text, "yellow")


def _show_stored(context: typer.Context, conversation: int, *, whole: bool) -> None:
    with opened(settings_of(context)) as conn:
        here = history.overview(conn, conversation)
        session = sessions.get(conn, here.active_session_id)
    if session.system_prompt is None:
        say("It has none yet: it is written with the first message.")
        return
    model = (session.prompt_inputs or {}).get("model", "")
    tools = [ToolSchema(**tool) for tool in orjson.loads(session.tools or "[]")]
    prompt = SystemPrompt(session.system_prompt, session.prompt_layers)
    _print(prompt, tools, model, whole=whole)


def _print(prompt: SystemPrompt, tools: Sequence[ToolSchema], model: str, *, whole: bool) -> None:
    """Print the layers of a system prompt, and the tools before it in each request."""

    def row(name: str, tokens: int, text: str, note: str = "") -> None:
        is_sum = name.endswith("together")
        line = f"{name:<22}{tokens:>7,} tokens  {len(text):>7,} chars  {note}"
        say(line.rstrip(), "bold" if is_sum else "")
        if whole and not is_sum:
            say(f"{text}\n", "dim")

    # Versions before 0.5 did not store layers.
    for name, text in prompt.parts() or [("(not known by layer)", prompt.text)]:
        note = f"changes with: {_STABILITIES[name]}" if name in _STABILITIES else ""
        row(name, estimate_tokens(text, model), text, note)
    row("together", estimate_tokens(prompt.text, model), prompt.text)
    texts = [orjson.dumps(tool).decode() for tool in tools]
    for tool, text in zip(tools, texts, strict=True):
        row(tool.name, estimate_tools([tool], model), text, "tool")
    row("tools together", estimate_tools(tools, model), "".join(texts))


def unused_files(files: Snapshot) -> Iterator[str]:
    """Yield a line for each file or skill that is ignored or changed."""
    for file in files.unreadable:
        yield f"! {file.name} cannot be read and counts as not there: {file.reason}"
    for source, findings in files.findings.items():
        counts = Counter(finding.kind for finding in findings)
        removed = ", ".join(f"{kind} ({count})" for kind, count in counts.items())
        yield f"! {source}: removed {removed}"
    for skill in files.bad_skills:
        yield f"! skill {skill.name} cannot be used: {skill.reason}"
