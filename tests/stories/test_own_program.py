"""Somebody's own agent, outside of this project: it imports `agent` and nothing else of Parley."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

OPENAI = '''
import json
from agent import ObservationTruncator, compact_messages, estimate_tokens

WINDOW = 12_000
cut = ObservationTruncator(max_lines=40, output_dir="outputs")


def model(messages, n):
    """Calls the tool once for each question, then answers."""
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": "done: " + messages[-1]["content"][:20]}
    function = {"name": "read_log", "arguments": json.dumps({"file": f"{n}.log"})}
    call = {"id": f"call_{n}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def tool(call):
    output = "\\n".join(f"{call['id']} line {n}" for n in range(400))
    preview = cut.truncate("read_log", output)["preview"]
    return {"role": "tool", "tool_call_id": call["id"], "content": preview}


messages = [{"role": "system", "content": "You read logs."}]
largest = compactions = 0
for n in range(120):
    messages.append({"role": "user", "content": f"What is in log {n}? The ticket is T-{4000 + n}."})
    while True:
        if estimate_tokens(messages) > WINDOW / 2:
            messages = compact_messages(messages, context_length=WINDOW).messages
            compactions += 1
        largest = max(largest, estimate_tokens(messages))
        answer = model(messages, n)
        messages.append(answer)
        if "tool_calls" not in answer:
            break
        messages += [tool(call) for call in answer["tool_calls"]]
print(json.dumps({"largest": largest, "compactions": compactions, "messages": messages}))
'''

ANTHROPIC = """
import json
from agent import HistoryManager, apply_cache_control

WINDOW = 12_000
history = HistoryManager(min_retain_rounds=3, compression_threshold=0.5, context_window=WINDOW)


def model(messages):
    last = messages[-1]["content"]
    if isinstance(last, list) and last[-1]["type"] == "tool_result":
        return [{"type": "text", "text": "done"}]
    n = len(history.originals())
    return [{"type": "tool_use", "id": f"toolu_{n}", "name": "read_log", "input": {"n": n}}]


largest = compactions = 0
for n in range(120):
    history.append({"role": "user", "content": f"What is in log {n}?"})
    while True:
        if history.should_compress():
            compactions += history.compress().level != "none"
        largest = max(largest, history.estimate())
        request = history.get_history()
        apply_cache_control(request)
        content = model(request)
        history.append({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            break
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": f"{call['id']} " * 200}
            for call in calls
        ]
        history.append({"role": "user", "content": results})
print(json.dumps({
    "largest": largest,
    "compactions": compactions,
    "messages": history.get_history(),
    "originals": len(history.originals()),
}))
"""


def lived(folder: Path, program: str) -> dict[str, Any]:
    """Run a program in a folder of its own; returns what it printed."""
    imported = {
        name.split(".")[0] for node in ast.walk(ast.parse(program)) for name in _names(node)
    }
    assert imported == {"agent", "json"}
    path = folder / "own_agent.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, str(path)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


@pytest.mark.thorough
def test_an_agent_with_messages_of_openai_stays_within_its_window(tmp_path: Path) -> None:
    """A hundred and twenty questions, each with a long log: the newest is there, whole."""
    found = lived(tmp_path, OPENAI)
    assert found["compactions"] > 3
    assert found["largest"] <= 6_000
    assert found["messages"][-4]["content"] == "What is in log 119? The ticket is T-4119."
    assert json.dumps(found["messages"]).count("[CONTEXT COMPACTION]") == 1
    # An old ticket is still told of, though its messages have left.
    assert "T-4000" in json.dumps(found["messages"])
    assert len(list((tmp_path / "outputs").iterdir())) == 120


@pytest.mark.thorough
def test_an_agent_with_messages_of_anthropic_stays_within_its_window(tmp_path: Path) -> None:
    """The same with a history that holds the messages."""
    found = lived(tmp_path, ANTHROPIC)
    assert found["compactions"] > 3
    assert found["largest"] <= 12_000
    assert found["originals"] == 480
    assert found["messages"][-4]["content"] == "What is in log 119?"
    calls = [b["id"] for m in found["messages"] for b in _blocks(m) if b["type"] == "tool_use"]
    results = [
        b["tool_use_id"]
        for m in found["messages"]
        for b in _blocks(m)
        if b["type"] == "tool_result"
    ]
    assert calls == results != []


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    return message["content"] if isinstance(message["content"], list) else []


@pytest.mark.parametrize(
    ("name", "most"),
    [("apply_cache_control", 60), ("TokenCounter", 250), ("compact_messages", 290)],
)
def test_a_part_is_imported_alone(name: str, most: int) -> None:
    """`import agent` brings nothing, a part what it needs: no settings, no plugins, no SDK."""
    code = (
        "import sys, json, agent\n"
        "ours = {'agent', 'gateway', 'adapters', 'network'}\n"
        "bare = [m for m in sys.modules if m.split('.')[0] in ours]\n"
        "before = len(sys.modules)\n"
        f"agent.{name}\n"
        "heavy = {'pydantic', 'sqlalchemy', 'aiohttp', 'anthropic', 'openai'} & set(sys.modules)\n"
        "print(json.dumps([bare, len(sys.modules) - before, sorted(heavy)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    bare, count, heavy = json.loads(done.stdout)
    assert bare == ["agent"]
    assert count <= most
    assert heavy == []
