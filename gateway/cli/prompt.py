"""`parley prompt show`: system prompt by layer and tools, their tokens, and what was taken out."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import orjson
import structlog
import typer

from agent.messages import ToolSchema
from agent.prompt.system import LAYERS, SystemPrompt
from agent.tokens import estimate_tokens, estimate_tools
from gateway import wiring
from gateway.cli.common import conversation_id, loaded, opened, settings_of
from gateway.cli.output import say
from gateway.context import window
from gateway.context.prompts import Snapshot
from gateway.storage.conversation import sessions
from gateway.storage.reports import history

_STABILITIES: dict[str, str] = {layer.name: layer.stability for layer in LAYERS}

prompt_app = typer.Typer(help="What the model is told before anybody speaks.", no_args_is_help=True)


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
    # What is found is shown below; a log line for it would only stand between.
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)
    if conversation is None:
        _show_new(context, whole=whole)
    else:
        _show_stored(context, conversation, whole=whole)


def _show_new(context: typer.Context, *, whole: bool) -> None:
    settings = loaded(context).settings
    line = wiring.build_line(settings)
    agent = wiring.build_agent(settings, line)
    agent = window.with_engine_tools(agent, wiring.build_context(settings, agent))
    prompts = wiring.build_prompts(settings)
    model = agent.models[0].name
    _print(prompts.typical(agent), model, whole=whole)
    _print_tools(agent.tools.schemas, model, whole=whole)
    for text in problems(prompts.files.current):
        say(text, "yellow")


def _show_stored(context: typer.Context, conversation: int, *, whole: bool) -> None:
    with opened(settings_of(context)) as conn:
        here = history.overview(conn, conversation)
        session = sessions.get(conn, here.active_session_id)
    if session.system_prompt is None:
        say("It has none yet: it is written with the first message.")
        return
    model = (session.prompt_inputs or {}).get("model", "")
    _print(SystemPrompt(session.system_prompt, session.prompt_layers), model, whole=whole)
    tools = [ToolSchema(**tool) for tool in orjson.loads(session.tools or "[]")]
    _print_tools(tools, model, whole=whole)


def _print(prompt: SystemPrompt, model: str, *, whole: bool) -> None:
    # Before version 0.5 the layers were not stored.
    parts = prompt.parts() or [("(not known by layer)", prompt.text)]
    for name, text in parts:
        changes = f"changes with: {_STABILITIES[name]}" if name in _STABILITIES else ""
        _print_row(name, estimate_tokens(text, model), text, changes)
        if whole:
            say(f"{text}\n", "dim")
    _print_row("together", estimate_tokens(prompt.text, model), prompt.text, style="bold")


def _print_tools(tools: Sequence[ToolSchema], model: str, *, whole: bool) -> None:
    """Print what stands before the system prompt in each request."""
    texts = [orjson.dumps(tool).decode() for tool in tools]
    for tool, text in zip(tools, texts, strict=True):
        _print_row(tool.name, estimate_tools([tool], model), text, "tool")
        if whole:
            say(f"{text}\n", "dim")
    _print_row("tools together", estimate_tools(tools, model), "".join(texts), style="bold")


def _print_row(name: str, tokens: int, text: str, note: str = "", *, style: str = "") -> None:
    row = f"{name:<22}{tokens:>7,} tokens  {len(text):>7,} chars  {note}"
    say(row.rstrip(), style)


def problems(files: Snapshot) -> Iterator[str]:
    """Yield a line for each file or skill that is not used, or not as it is written."""
    for file in files.unreadable:
        yield f"! {file.name} cannot be read and counts as not there: {file.reason}"
    for source, findings in files.findings.items():
        counts = Counter(finding.kind for finding in findings)
        yield f"! {source}: removed {_counted(list(counts.items()))}"
    for skill in files.bad_skills:
        yield f"! skill {skill.name} cannot be used: {skill.reason}"


def _counted(counts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{kind} ({count})" for kind, count in counts)
