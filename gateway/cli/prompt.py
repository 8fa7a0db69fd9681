"""`parley prompt`: the system prompt and the tools, with their tokens."""

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
from gateway.cli.common import conversation_id, loaded, opened, say, settings_of
from gateway.context import window
from gateway.context.prompts import Snapshot
from gateway.storage.conversation import sessions
from gateway.storage.reports import history

_STABILITIES: dict[str, str] = {layer.name: layer.stability for layer in LAYERS}

prompt_app = typer.Typer(no_args_is_help=True)


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
