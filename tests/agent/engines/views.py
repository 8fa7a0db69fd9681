"""Views that engines are tried on, and plugins on disk."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.context_engine import CompressionRequest, Limits
from agent.messages import ChatMessage, assistant_message, tool_message, user_message
from agent.plugins.loading import ENGINES
from agent.tokens import estimate_message
from agent.view.view import Entry, View, ViewPlan
from tests.support.scripted_model import tool_call

FIXED_TOKENS = 50
SYSTEM = "You are Parley."


def conversation(rounds: int, words: int = 60) -> list[Entry]:
    """Return rounds of four messages: a request, a call, its result, an answer of `words` words."""
    messages: list[ChatMessage] = []
    for n in range(1, rounds + 1):
        messages += [
            user_message(f"request {n}: please look at file{n}.txt"),
            ChatMessage(
                role="assistant",
                content=None,
                tool_calls=[tool_call("look", {"path": f"file{n}.txt"}, f"c{n}")],
            ),
            tool_message(f"c{n}", "look", f"result {n} " + "data " * words),
            assistant_message(f"answer {n} " + "word " * words),
        ]
    return [Entry(seq, message) for seq, message in enumerate(messages, start=1)]


def request_of(
    entries: Sequence[Entry], window: int = 4_000, plan: ViewPlan | None = None, **more: Any
) -> CompressionRequest:
    """Return the request of a view that shows these entries under a plan."""
    plan = plan or ViewPlan()
    view = View(SYSTEM, plan, list(entries))
    request = CompressionRequest(
        plan=plan,
        entries=tuple(view.entries),
        tokens=FIXED_TOKENS + sum(map(estimate_message, view.messages[1:])),
        fixed_tokens=FIXED_TOKENS,
        limits=Limits(window, protect_last_n=4),
        estimate=estimate_message,
        trigger="threshold",
    )
    return replace(request, **more)


def write_plugin(home: Path, name: str, source: str, file: str = "__init__.py") -> Path:
    """Write a plugin of one file; return its folder."""
    folder = home / ENGINES / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(source)
    for path in (home / ENGINES.parent, home / ENGINES, folder, folder / file):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def engine_source(name: str, body: str = "return None") -> str:
    """Return the source of a plugin whose engine has this name and this `compress`."""
    return (
        "from agent.context_engine import ContextEngine\n"
        "class Engine(ContextEngine):\n"
        f"    name = {name!r}\n"
        "    def compress(self, request):\n"
        f"        {body}\n"
    )
