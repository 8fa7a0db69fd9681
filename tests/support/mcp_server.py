"""A strict MCP server over stdio, with the standard library alone: it starts in 30 ms.

Run as a program: `python mcp_server.py [PLAN]`, where PLAN is JSON, or @ and a file of it: `tools`
(definitions in place of the usual ones), `log` (a file that gets a line for each thing that
happens), `say` (written to stderr at the start), `deaf` (SIGTERM and the end of stdin are ignored).
"""

import json
import os
import signal
import sys
import threading
from base64 import encodebytes
from typing import Any

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = [
    {"name": "echo", "description": "Says the same.", "inputSchema": TEXT},
    {"name": "fail", "description": "Fails.", "inputSchema": NOTHING},
    {"name": "wait", "description": "Never ends.", "inputSchema": NOTHING},
    {"name": "die", "description": "Ends the server.", "inputSchema": NOTHING},
    {"name": "env", "description": "Its environment.", "inputSchema": NOTHING},
    {"name": "flood", "description": "Says too much.", "inputSchema": NOTHING},
    {"name": "odd", "description": "Answers nonsense.", "inputSchema": NOTHING},
    {"name": "change", "description": "Changes the list.", "inputSchema": NOTHING},
    {"name": "bad", "description": "Malformed.", "inputSchema": {"type": "string"}},
]
PAGE = 4


class Server:
    """Answers one message after the other; whatever is out of order is an error and is noted."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.tools = plan.get("tools", TOOLS)
        self.initialized = False
        self.asked: set[Any] = set()

    def note(self, line: str) -> None:
        """Add a line to the log that the test reads."""
        if path := self.plan.get("log"):
            with open(path, "a") as file:  # noqa: PTH123
                file.write(line + "\n")

    def send(self, message: dict[str, Any]) -> None:
        """Write one message."""
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def take(self, message: dict[str, Any]) -> None:
        """Handle one message."""
        method, params = message["method"], message.get("params", {})
        if "id" not in message:
            self.notified(method, params)
            return
        if message["id"] in self.asked:
            self.note("violation: an id twice")
        self.asked.add(message["id"])
        try:
            result = self.answer(method, params)
        except LookupError as exc:
            error = {"code": -32601, "message": str(exc.args[0])}
            self.send({"id": message["id"], "error": error})
            return
        if result is not None:
            self.send({"id": message["id"], "result": result})

    def notified(self, method: str, params: dict[str, Any]) -> None:
        """Take note of a notification."""
        if method == "notifications/initialized":
            self.initialized = True
        elif method == "notifications/cancelled":
            self.note(f"cancelled {params['requestId'] in self.asked}")

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result of a request; None for one that is never answered."""
        if method == "initialize":
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "strict", "version": "1"},
            }
        if method not in {"tools/list", "tools/call"}:
            raise LookupError(f"no method {method}")
        if not self.initialized:
            self.note(f"violation: {method} before initialized")
        if method == "tools/list":
            return self.listed(int(params.get("cursor", 0)))
        return self.called(params["name"], params.get("arguments") or {})

    def listed(self, start: int) -> dict[str, Any]:
        """Return a page of the list."""
        page: dict[str, Any] = {"tools": self.tools[start : start + PAGE]}
        if start + PAGE < len(self.tools):
            page["nextCursor"] = str(start + PAGE)
        return page

    def called(self, name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """Run a tool, if its arguments are all there."""
        schema = next((each["inputSchema"] for each in self.tools if each["name"] == name), {})
        for missing in sorted({*schema.get("required", ())} - {*arguments}):
            text = f"Input validation error: '{missing}' is a required property"
            return {"content": [{"type": "text", "text": text}], "isError": True}
        self.note(f"called {name}")
        if name == "wait":
            return None
        if name == "die":
            os._exit(1)
        if name == "odd":
            return {"content": "nonsense"}
        if name == "change" and __name__ == "__main__":
            self.send({"method": "notifications/tools/list_changed"})
        environment = json.dumps(dict(os.environ))
        coded = {"base64": encodebytes(environment.encode()).decode()}
        coded["hex"] = environment.encode().hex()
        texts = {
            "echo": arguments.get("text", ""),
            "fail": "it did not work",
            "env": coded.get(arguments.get("as", ""), environment),
            "flood": "x" * 9_000_000 if name == "flood" else "",
        }
        content = [{"type": "text", "text": texts.get(name, "done")}]
        return {"content": content, "isError": name == "fail"}


def main() -> None:
    """Serve until stdin ends."""
    told = sys.argv[1] if len(sys.argv) > 1 else "{}"
    if told.startswith("@"):
        with open(told[1:]) as file:  # noqa: PTH123
            told = file.read()
    plan = json.loads(told)
    server = Server(plan)
    server.note(f"started {os.getpid()}")
    sys.stderr.write(plan.get("say", ""))
    sys.stderr.flush()
    if plan.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        server.take(json.loads(line))
    server.note("ended")
    if plan.get("deaf"):
        threading.Event().wait()


if __name__ == "__main__":
    main()
