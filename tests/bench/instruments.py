"""What metrics and traces cost a message: CPU of the whole process with them and without.

One gateway after the other, in the same process: without both, with metrics, with both, and again,
each time in another order. Traces go to a collector in a process of its own, which only takes them;
every message is sampled. What else the machine does can only add to the CPU of a message (caches,
clocks), so the least of all rounds is what each of the three takes.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

from gateway.metrics.instruments import Instruments
from tests.bench.figures import Figure
from tests.bench.page import ROOT
from tests.bench.running import Chats, running

PAGE = ROOT / "docs" / "metrics.md"
ROUNDS = 15
WARM_UP = 20
MESSAGES = 60
EXPORT_EVERY_S = 0.25
SETTLES_S = 0.5
"""The last export belongs to the messages, too."""
MOST = 1.03
OFF, METRICS, BOTH = "without both", "with metrics", "with metrics and traces"
_SINK = """
import http.server, sys
class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
print(server.server_port, flush=True)
server.serve_forever()
"""


def measure() -> Iterator[Figure]:
    """Yield the CPU of a message in each of the three, and what they are beside the first."""
    cpu: dict[str, list[float]] = {OFF: [], METRICS: [], BOTH: []}
    with _collector() as url, patch("gateway.metrics.traces.EVERY_S", EXPORT_EVERY_S):
        ways = _ways(url)
        for n in range(ROUNDS):
            order = [*ways][n % 3 :] + [*ways][: n % 3]
            for way in order:
                cpu[way].append(_of_way(way, ways[way]))
    for way, found in cpu.items():
        yield Figure(f"CPU per message {way}", min(found), "ms")
    for way, at_most in ((METRICS, MOST), (BOTH, None)):
        ratio = min(cpu[way]) / min(cpu[OFF])
        yield Figure(f"CPU {way}, beside none", ratio, "times", at_most=at_most)


def _of_way(way: str, settings: Mapping[str, object]) -> float:
    # No setting has nothing counted.
    unheard = patch.object(Instruments, "recording", lambda _: nullcontext())
    with unheard if way == OFF else nullcontext():
        return asyncio.run(_cpu_ms(settings))


def _ways(url: str) -> dict[str, Mapping[str, object]]:
    return {
        OFF: {},
        METRICS: {},
        BOTH: {"telemetry.otlp_endpoint": url},
    }


async def _cpu_ms(settings: Mapping[str, object]) -> float:
    """Return the CPU of a message in a fresh gateway that has warmed up."""
    chats = Chats()
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder), chats.on_send, **settings) as gateway:
            chats.gateway = gateway
            for n in range(WARM_UP):
                await chats.ask("1", f"warm up {n}")
            await asyncio.sleep(SETTLES_S)
            began = time.process_time()
            for n in range(MESSAGES):
                await chats.ask("1", f"hello {n}, how is order {n}")
            await asyncio.sleep(SETTLES_S)
            return (time.process_time() - began) / MESSAGES * 1e3


@contextmanager
def _collector() -> Iterator[str]:
    """Run what takes exports and forgets them; yields its address."""
    command = (sys.executable, "-c", _SINK)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sink:
        assert sink.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(sink.stdout.readline())}"
        finally:
            sink.terminate()
