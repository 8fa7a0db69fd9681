"""Attacks 9 and 15: texts that cost too much to show, and texts that are shown as others."""

import asyncio
import stat
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest

from adapters.previews import render_in_thread
from adapters.rendering.markdown import to_html
from adapters.web.events import page_html
from agent.safety.redaction import printable
from gateway.cli.common import JSON_ESCAPES
from tests.adapters.rendering.test_renderer import calls_of, most_calls
from tests.adapters.web.conftest import serving
from tests.adapters.web.streams import listen
from tests.support.command_line import Run, own_environment, runner
from tests.support.process import ParleyProcess
from tests.support.renderers import PLATFORMS, Platform
from tests.support.searching import feed
from tests.support.storage import Store, turn_of
from tests.support.thorough import amount

BIDI = [*"\u061c\u200e\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))]
READERS = 8
SIDE = 2_000
WIDE = "|" + "a|" * SIDE + "\n" + "|" + "-|" * SIDE + "\n" + "b\n" * SIDE
"""A heading of 2,000 cells and 2,000 rows of one: 12 KB that stand for four million cells."""
IMAGES = "![" * amount(5_000, 20_000)
RENDERERS = [*(platform.render for platform in PLATFORMS), to_html]


@pytest.fixture
def parley(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Run `parley …` in this process, on the database of the test."""
    with own_environment(tmp_path, monkeypatch):
        yield runner(monkeypatch, capsys)


@pytest.mark.thorough
@pytest.mark.parametrize("render", RENDERERS)
@pytest.mark.parametrize("text", [WIDE, IMAGES], ids=["table", "images"])
async def test_attack_09_a_text_that_is_dear_to_render(render: object, text: str) -> None:
    """It costs so much for each character and no more, and is rendered beside the event loop."""
    assert callable(render)
    assert calls_of(render, text) <= most_calls(text)
    threads: set[int] = set()

    def noted(markdown: str) -> object:
        threads.add(threading.get_ident())
        return render(markdown)

    assert await render_in_thread(noted, text)
    assert threading.get_ident() not in threads


async def test_attack_09_many_readers_of_a_text_that_is_dear_to_render(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answers are rendered once for all readers, and never on the thread that serves health."""
    rendered_by: list[tuple[str, bool]] = []
    loop_thread = threading.get_ident()

    def noted(text: str) -> str:
        rendered_by.append((text, threading.get_ident() == loop_thread))
        return page_html(text)

    monkeypatch.setattr("adapters.web.events.page_html", noted)
    dear = [f"{number} " + "![" * 3_999 for number in range(4)]
    async with serving() as start, AsyncExitStack() as readers:
        chat = await start()
        for text in dear:
            chat.history.answer("c1", text)
        streams = [await readers.enter_async_context(listen(chat)) for _ in range(READERS)]
        shown = await asyncio.gather(*(stream.until("synced") for stream in streams))
    assert all(
        [item.data["html"] for item in each[:4]] == [*map(page_html, dear)] for each in shown
    )
    assert sorted(rendered_by) == [(text, False) for text in dear]


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda platform: platform.name)
async def test_attack_09_a_preview_that_is_dear_to_render(platform: Platform) -> None:
    """A growing answer is rendered again and again: never on the event loop."""
    threads: set[int] = set()

    def noted(text: str) -> str | None:
        threads.add(threading.get_ident())
        return platform.preview_text(text)

    assert await render_in_thread(noted, "![" * 4_000)
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("control", BIDI)
def test_attack_15_direction_is_spelled_out(control: str) -> None:
    """In texts and in JSON, for terminals."""
    assert printable(f"a{control}b") == f"a\\u{ord(control):04x}b"
    text = orjson.dumps({"a": control}).decode().translate(JSON_ESCAPES)
    assert control not in text
    assert orjson.loads(text) == {"a": control}


@pytest.mark.parametrize(
    "command",
    [
        "sessions list",
        "sessions list --json",
        "sessions export 1",
    ],
)
def test_attack_15_a_title_does_not_turn_a_line_round(
    store: Store, parley: Run, command: str
) -> None:
    """As `sessions` shows what strangers wrote, to people and to programs."""
    store.run(turn_of, "invoice \u202efdp.exe \u2066x")
    feed(store)
    shown = parley(*command.split()).out
    assert "\\u202e" in shown
    assert not set(shown) & set(BIDI)


@pytest.mark.thorough
async def test_attack_15_an_open_home_is_closed(tmp_path: Path) -> None:
    """With a line that says so."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    (home / "token").write_text("secret")
    (home / "token").chmod(0o644)
    async with ParleyProcess(home) as parley:
        record = await parley.event("mode_restored")
        assert record["path"] == str(home)
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
