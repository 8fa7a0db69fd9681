"""`parley prompt` and `parley policy`: what the model is told, and what its tools may do."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import orjson
import structlog
import typer

from agent.messages import ToolSchema
from agent.prompt.system import LAYERS, SystemPrompt
from agent.settings import ToolSettings
from agent.tokens import estimate_tokens, estimate_tools
from agent.tools import policy
from agent.tools.catalog import BUILTIN, builtin_tools
from agent.tools.policy import FETCH, NOTES, SIDE_EFFECT, WORLD, Facts, Rule
from gateway import wiring
from gateway.cli.common import (
    AsJson,
    conversation_id,
    loaded,
    opened,
    out,
    say,
    settings_of,
    show_json,
    show_table,
)
from gateway.context import window
from gateway.context.prompts import Snapshot
from gateway.errors import NotFound
from gateway.storage.conversation import sessions
from gateway.storage.reports import history

_STABILITIES: dict[str, str] = {layer.name: layer.stability for layer in LAYERS}
CHOICES = {"role": policy.ROLES, "destination": policy.DESTINATIONS}

prompt_app = typer.Typer(no_args_is_help=True)
policy_app = typer.Typer(no_args_is_help=True)


@prompt_app.command("show")
def prompt_show(
    context: typer.Context,
    conversation: Annotated[
        int | None,
        typer.Argument(
            parser=conversation_id,
            metavar="ID",
            help="Id from `parley sessions list`; else what a new one begins with.",
        ),
    ] = None,
    *,
    whole: Annotated[bool, typer.Option("--text", help="Print the texts as well.")] = False,
) -> None:
    """Print layers of the system prompt and tools with their tokens, and what the scan took out."""
    # Findings are shown below; log lines about them would only interrupt the table.
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)
    if conversation is None:
        _show_new(context, whole=whole)
    else:
        _show_stored(context, conversation, whole=whole)


def _show_new(context: typer.Context, *, whole: bool) -> None:
    settings = loaded(context).settings
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
    """Print the layers of a system prompt, and the tools that precede it in each request."""

    def row(name: str, tokens: int, text: str, note: str = "") -> None:
        is_sum = name.endswith("together")
        line = f"{name:<22}{tokens:>7,} tokens  {len(text):>7,} chars  {note}"
        say(line.rstrip(), "bold" if is_sum else "")
        if whole and not is_sum:
            say(f"{text}\n", "dim")

    # Before version 0.5 the layers were not stored.
    for name, text in prompt.parts() or [("(not known by layer)", prompt.text)]:
        note = f"changes with: {_STABILITIES[name]}" if name in _STABILITIES else ""
        row(name, estimate_tokens(text, model), text, note)
    row("together", estimate_tokens(prompt.text, model), prompt.text)
    texts = [orjson.dumps(tool).decode() for tool in tools]
    for tool, text in zip(tools, texts, strict=True):
        row(tool.name, estimate_tools([tool], model), text, "tool")
    row("tools together", estimate_tools(tools, model), "".join(texts))


def unused_files(files: Snapshot) -> Iterator[str]:
    """Yield a line for each file or skill that is not used, or not as it is written."""
    for file in files.unreadable:
        yield f"! {file.name} cannot be read and counts as not there: {file.reason}"
    for source, findings in files.findings.items():
        counts = Counter(finding.kind for finding in findings)
        removed = ", ".join(f"{kind} ({count})" for kind, count in counts.items())
        yield f"! {source}: removed {removed}"
    for skill in files.bad_skills:
        yield f"! skill {skill.name} cannot be used: {skill.reason}"


@policy_app.command("show")
def policy_show(context: typer.Context, json: AsJson = False) -> None:
    """Print the table as it is in force, and where each row comes from; the strictest decides."""
    found = loaded(context)
    rows = policy.of_settings(found.settings.tools)
    if json:
        show_json([row.model_dump() | {"origin": _origin(row, found.origins)} for row in rows])
        return
    columns = ("row", "tool", "role", "tainted", "destination", "group", "then", "from")
    tainted = {None: "*", True: "yes", False: "no"}
    cells = [
        (
            *(row.name, row.tool, row.role, tainted[row.tainted], row.destination),
            *(row.group, row.then, _origin(row, found.origins)),
        )
        for row in rows
    ]
    show_table(columns, cells, "There are no rows.")


@policy_app.command("explain")
def policy_explain(  # noqa: PLR0913 - an option each
    context: typer.Context,
    tool: Annotated[str, typer.Option(help="Which tool is called.")],
    role: Annotated[str, typer.Option(help="owner, member or guest.")] = "member",
    destination: Annotated[
        str, typer.Option(help="Of fetch_url: listed, named, linked or new.")
    ] = "none",
    group: Annotated[str, typer.Option(help="platform:chat; empty: a direct chat.")] = "",
    *,
    tainted: Annotated[bool, typer.Option(help="The turn has read strangers' text.")] = False,
    json: AsJson = False,
) -> None:
    """Say what becomes of a call, and which row of the table decides."""
    for name, value in (("role", role), ("destination", destination)):
        if value not in CHOICES[name]:
            raise NotFound(f"--{name} is one of {', '.join(sorted(CHOICES[name]))}, not {value!r}")
    tools = loaded(context).settings.tools
    facts = Facts(
        tool=tool,
        classes=_classes(tool, tools),
        roles=frozenset({role}),
        tainted=tainted,
        destination=destination,
        group=group,
    )
    decision = policy.decide(policy.of_settings(tools), facts)
    if json:
        show_json({"verdict": decision.then, "rule": decision.name})
        return
    out.print(f"{decision.then}: {_WORDS[decision.then]} (row {decision.name})")
    if tool not in BUILTIN:
        out.print(f"{tool} is not built in: it counts as one with side effects here")


_WORDS = {
    "allow": "it runs without a question",
    "ask": "somebody who may act is asked",
    "ask_owner": "an owner is asked",
    "deny": "it does not run",
}


def _classes(name: str, tools: ToolSettings) -> frozenset[str]:
    """Return the classes of a call; a tool that is not built in counts as a side effect."""
    # `terminal` has the same classes, and cannot be made on every machine.
    if name not in BUILTIN or name == "terminal":
        return frozenset({SIDE_EFFECT, WORLD})
    made = builtin_tools(tools.model_copy(update={"enabled": (name,)}))
    classes = {SIDE_EFFECT} if made.effect(name) == "side_effect" else set()
    classes |= {WORLD} if made.restricted(name) else set()
    classes |= {FETCH} if name in policy.FETCHING else set()
    return frozenset(classes | ({NOTES} if name == "memory" else set()))


def _origin(row: Rule, origins: dict[str, str]) -> str:
    """Return the file, variable or option that set a row, or "default"."""
    key = row.name.replace("[", ".").replace("]", "")
    if key.startswith("tools.approval"):
        key = "tools.approval"
    said = (origin for name, origin in origins.items() if name == key or name.startswith(f"{key}."))
    return next((origin for origin in said if origin != "default"), "default")
