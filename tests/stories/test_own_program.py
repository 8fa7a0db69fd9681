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
