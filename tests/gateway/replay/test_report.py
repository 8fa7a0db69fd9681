"""The page of `parley replay --report`."""

from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.errors import SettingsError
from gateway.replay.costs import Comparison
from gateway.replay.report import (
    MOST_SHOWN,
    OPEN_SECTIONS,
    Conditions,
    Replayed,
    check_target,
    compaction_cells,
    page,
    write_report,
)
from gateway.storage.reports.timeline import Timeline
from tests.gateway.replays import (
    CONDITIONS,
    FACTS,
    TARIFF,
    bill,
    billed,
    replayed,
    shrinking,
    timeline_of,
)
from tests.support.browser import CHROMIUM
from tests.support.browser import page as browser_page

VOID = {"meta"}
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>$title{x}</svg></details>'


class Read(HTMLParser):
    """The tags of a page in order, and the texts between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    @override
    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    @override
    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())


def read(results: Iterable[Replayed], conditions: Conditions = CONDITIONS) -> Read:
    return Read(page([*results], conditions))


def figure(found: Read, name: str) -> str:
    """Return the value that follows a name for the first time."""
    return found.texts[found.texts.index(name) + 1]


def test_the_page_is_whole() -> None:
    """Every tag that is opened is closed, in order."""
    found = read([replayed("a"), replayed("b", timeline_of(9, compactions=[shrinking(0)]))])
    assert found.open == []
    assert found.tags.count("details") == 2


def test_the_page_needs_nothing_else() -> None:
    """No script, no address of anything outside, and a policy that forbids both."""
    found = read([replayed(timeline=timeline_of(100, 200, compactions=[shrinking(1)]))])
    assert not {"script", "link", "img", "iframe", "use", "image"} & {*found.tags}
    assert not {"src", "href", "xlink:href", "style", "onclick"} & dict(found.attributes).keys()
    contents = [value or "" for name, value in found.attributes if name == "content"]
    assert any("default-src 'none'" in content for content in contents)


def test_the_settings_that_were_used_are_told() -> None:
    """Window, threshold, hygiene, engine, tail and files."""
    found = read([replayed()])
    told = {name: figure(found, name) for name in ("window", "threshold", "hygiene", "files")}
    assert told == {
        "window": "1,000 tokens",
        "threshold": "50%, 500 tokens",
        "hygiene": "85%, 850 tokens",
        "files": "talk.json",
    }
    assert figure(found, "engine") == "compressor"
    assert figure(found, "tail") == "20% of the threshold, at least 20 messages"


def test_the_totals_are_sums_over_all_conversations() -> None:
    """The largest context is the largest of all."""
    many = timeline_of(100, 300, cached=[0, 200], compactions=[shrinking(1)])
    found = read([replayed("a", many), replayed("b", timeline_of(400), problem="lost")])
    names = ("conversations answered", "messages", "model calls", "tokens in", "largest context")
    assert [figure(found, name) for name in names] == ["1 of 2", "12", "3", "800", "400"]
    assert figure(found, "of these read from cache") == "25.0%"
    assert (figure(found, "compactions"), figure(found, "time")) == ("1", "1.2 s")


def test_the_longest_conversation_comes_first() -> None:
    """Those behind the first few are folded."""
    found = read(replayed(f"talk{n}", timeline_of(*[10] * n)) for n in range(1, 7))
    charts = found.texts[found.texts.index("Context over the model calls") :]
    names = [text for text in charts if text.startswith("talk")]
    assert names == ["talk6", "talk5", "talk4", "talk3", "talk2", "talk1"]
    assert [name for name, _ in found.attributes].count("open") == OPEN_SECTIONS


def test_a_problem_stands_in_its_line() -> None:
    """As the table in the terminal tells it."""
    found = read([replayed(problem="message 1 was answered with '<no>'")])
    assert "message 1 was answered with '<no>'" in found.texts
    assert "all answered" not in found.texts


def test_a_conversation_without_calls_has_no_chart() -> None:
    """It failed before the first."""
    found = read([replayed(timeline=Timeline(), problem="lost")])
    assert "There was no model call." in found.texts
    assert figure(found, "of these read from cache") == "-"


def test_compactions_are_listed() -> None:
    """Estimated and reported tokens, messages, what it cost and what it kept."""
    timeline = timeline_of(500, 150, compactions=[shrinking(1, tokens_after_reported=150)])
    found = read([replayed(timeline=timeline)])
    row = found.texts[found.texts.index("later calls") + 1 :]
    assert row == ["1", "2", "threshold", "compressor", "extract", "500", "100", "150",
                   "30 → 12", "400", "100%", "extractor", "7", "cold", "~$0.01 / ~$0.0105",
                   "287.5", "1"]  # fmt: skip


def rows_of(found: Read) -> list[str]:
    """Return the cells behind the heads of the table of bills."""
    start = found.texts.index("billed ÷ minimum") + 4
    return found.texts[start : found.texts.index("Context over the model calls")]


def test_the_bills_stand_side_by_side() -> None:
    """Both placings of the breakpoints, what was played first; tokens, shares and money."""
    bills = (bill("anchored", cache_read_tokens=900, input_tokens=100), bill("system_and_3"))
    found = read([replayed(billed=billed(bills=bills))])
    assert rows_of(found)[:12] == ["talk", "anchored", "2", "1,000", "900", "0", "100", "0.900",
                                   "1.900", "~$0.00019", "~$0", "~$0.00019"]  # fmt: skip
    assert rows_of(found)[12:14] == ["talk", "system_and_3"]


def test_bills_are_summed_over_conversations() -> None:
    """The sum comes first, then the longest conversation."""
    found = read(
        replayed(name, billed=billed(bills=[bill(cache_read_tokens=tokens)]))
        for name, tokens in (("a", 100), ("b", 200))
    )
    cells = rows_of(found)
    assert [cells[n] for n in (0, 3, 12, 15, 24, 27)] == [
        "all conversations",
        "300",
        "a",
        "100",
        "b",
        "200",
    ]


def test_many_conversations_are_folded() -> None:
    """Beyond the first ones, both their bills and their charts."""
    found = read(replayed(f"talk{n}") for n in range(MOST_SHOWN + 2))
    assert "Costs by conversation" in found.texts
    assert "2 shorter conversations" in found.texts
    assert found.tags.count("details") == MOST_SHOWN + 4
    few = read(replayed(f"talk{n}") for n in range(MOST_SHOWN))
    assert few.tags.count("details") == MOST_SHOWN


def test_unknown_prices_are_told() -> None:
    """Never as 0."""
    tariff = replace(TARIFF, facts=replace(FACTS, prices=None))
    found = read([replayed()], replace(CONDITIONS, tariff=tariff))
    assert figure(found, "prices") == "claude-x: unknown price"
    assert "unknown price" in rows_of(found)


def test_a_comparison_is_told() -> None:
    """What the same conversations would have cost without early compaction."""
    found = read([replayed()], replace(CONDITIONS, comparison=Comparison(1.5, 2.0)))
    assert any("Played without: ~$2.00; with it: ~$1.50" in text for text in found.texts)
    assert not any("Played without" in text for text in read([replayed()]).texts)


def test_restarts_are_told() -> None:
    """Only where there were any."""
    assert "restarts" not in read([replayed()]).texts
    found = read([replayed()], replace(CONDITIONS, restart_every=50))
    assert figure(found, "restarts") == "after every 50 requests"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"summary_model": "m1"}, "m1"),
        ({}, "extractor"),
        ({"failure": "timeout"}, "extractor (timeout)"),
        ({"retained_share": None}, "-"),
    ],
)
def test_the_writer_of_a_summary_is_told(fields: dict[str, Any], told: str) -> None:
    """And why it was not the model that was asked; a mere prune has no summary."""
    assert compaction_cells(shrinking(1, **fields))["summary by"] == told


@pytest.mark.thorough
@given(st.one_of(st.just(HOSTILE), st.text(max_size=40)))
def test_nothing_in_the_data_changes_the_page(text: str) -> None:
    """Whatever a recording, a file, an engine or a model is called, the tags are the same."""
    timeline = timeline_of(
        500, 100, compactions=[shrinking(1, trigger=text, level=text, engine=text, failure=text)]
    )
    tariff = replace(TARIFF, facts=replace(FACTS, name=text, source=text))
    conditions = replace(CONDITIONS, engine=text, files=(text,), tariff=tariff, pauses=text)
    found = read([replayed(text, timeline, problem=text or "x")], conditions)
    plain = read([replayed("x", timeline, problem="x")])
    assert found.open == []
    assert found.tags == plain.tags
    assert [name for name, _ in found.attributes] == [name for name, _ in plain.attributes]


def test_a_name_that_is_no_utf_8_can_be_written(tmp_path: Path) -> None:
    """File names may hold any bytes."""
    write_report(tmp_path / "out.html", [replayed("a\udcffb")], CONDITIONS)
    assert "a?b" in (tmp_path / "out.html").read_text("utf-8")


def test_the_target_is_tried_without_a_trace(tmp_path: Path) -> None:
    """A replay that fails leaves no empty file."""
    check_target(tmp_path / "out.html")
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_overwritten(tmp_path: Path) -> None:
    """Its content stays until the new one is there."""
    file = tmp_path / "out.html"
    write_report(file, [replayed("first talk")], CONDITIONS)
    check_target(file)
    assert "first talk" in file.read_text("utf-8")
    write_report(file, [replayed("second talk")], CONDITIONS)
    assert "first talk" not in file.read_text("utf-8")


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    """`--report *.jsonl` would take the first recording for the target."""
    file = tmp_path / "talk.jsonl"
    file.write_text("{}")
    with pytest.raises(SettingsError, match=r"talk\.jsonl: the file is there and is no report"):
        check_target(file)
    assert file.read_text("utf-8") == "{}"


@pytest.mark.parametrize("name", ["", "none/out.html"])
def test_a_target_that_cannot_be_written_is_told(tmp_path: Path, name: str) -> None:
    """A folder, or a file in a folder that is not there; also when it vanishes meanwhile."""
    target = tmp_path / name
    with pytest.raises(SettingsError, match=r"--report .*: cannot be written: "):
        check_target(target)
    with pytest.raises(SettingsError, match=r"--report .*: cannot be written: "):
        write_report(target, [], CONDITIONS)


if CHROMIUM:

    @pytest.mark.asyncio(loop_scope="session")
    @pytest.mark.usefixtures("the_browser")
    async def test_a_browser_shows_the_page(tmp_path: Path) -> None:
        """From a file, without a request, an error or a sideways scroll, hostile names and all.

        Only tables that are too wide scroll, and only sideways: none of their rows is hidden.
        """
        file = tmp_path / "out.html"
        many = [shrinking(n) for n in range(1, 61)]
        timeline = timeline_of(*range(100, 600, 5), compactions=many)
        write_report(file, [replayed(HOSTILE, timeline), replayed("b")], CONDITIONS)
        asked: list[str] = []
        async with browser_page(width=400) as tab:
            tab.on("request", lambda request: asked.append(request.url))
            await tab.goto(file.as_uri())
            assert asked == [file.as_uri()]
            assert await tab.inner_text("summary .name") == HOSTILE
            box = await tab.locator("details svg").first.bounding_box()
            assert box is not None
            assert box["height"] > 100
            width = await tab.evaluate("document.documentElement.scrollWidth")
            assert width <= 400
            table = tab.locator(".wide:has(.compactions)")
            sizes = "it => [it.scrollWidth > it.clientWidth, it.scrollHeight == it.clientHeight]"
            assert await table.evaluate(sizes) == [True, True]
