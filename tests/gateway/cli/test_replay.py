"""`parley replay`: recorded conversations through the real path."""

import io
import json
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gateway.cli import main
from gateway.cli.replay import play_files
from gateway.errors import SettingsError
from gateway.replay.player import facts_in, window_of
from gateway.settings.tree import Settings
from tests.support.command_line import Run, one_line
from tests.support.gateway import log_lines, settings_of
from tests.support.recording_adapter import Watch
from tests.support.shared import SHARED

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
OPTIONS = {
    "window": ("model", "context_length"),
    "engine": ("context", "engine"),
    "threshold": ("compression", "threshold"),
    "strategy": ("prompt_caching", "strategy"),
    "ttl": ("prompt_caching", "cache_ttl"),
}
ENGINES = "compressor, rounds, lcm"
PLUGIN = """
from typing import ClassVar
from agent.context_compressor import ContextCompressor
from agent.context_engine import ContextEngine

class Mine(ContextEngine):
    name: ClassVar[str] = "mine"

    def compress(self, request):
        return ContextCompressor(request.limits, {}).compress(request)
"""
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "What is there?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "look", "content": "a cat"},
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "You are welcome."},
]


def chosen(settings: Settings, **options: object) -> Settings:
    """Return the settings with what options of the command stand for."""
    for name, value in options.items():
        block, key = OPTIONS[name]
        section = getattr(settings, block).model_copy(update={key: value})
        settings = settings.model_copy(update={block: section})
    return settings


async def play(tmp_path: Path, *files: Path, **options: Any) -> tuple[bool, str]:
    """Return the verdict and what was printed."""
    settings = settings_of(tmp_path / "home")
    return await play_with(settings, *files, **options)


async def play_with(
    settings: Settings, *files: Path, gap_s: float = 0, **options: Any
) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), width=200)
    async with log_lines(Watch()):
        good = await play_files(chosen(settings, **options), files, console, gap_s)
    assert isinstance(console.file, io.StringIO)
    return good, console.file.getvalue()


def long_talk(steps: int = 12, words: int = 400) -> list[dict[str, Any]]:
    """Return two questions, the first answered after many large tool results."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read everything."}]
    for n in range(steps):
        call = {**CALL, "id": f"call_{n}"}
        messages.append({"role": "assistant", "content": f"Page {n}.", "tool_calls": [call]})
        text = " ".join(f"word{n * words + k}" for k in range(words))
        messages.append({"role": "tool", "tool_call_id": f"call_{n}", "content": text})
    done = [("assistant", "Done."), ("user", "Thanks"), ("assistant", "You are welcome.")]
    return [*messages, *({"role": role, "content": text} for role, text in done)]


def recording(tmp_path: Path, messages: list[dict[str, Any]], name: str = "talk") -> Path:
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(messages))
    return file


async def test_a_recording_gets_its_recorded_answers(tmp_path: Path) -> None:
    """Two turns, one tool call, six messages, and a line that says so."""
    good, printed = await play(tmp_path, recording(tmp_path, TALK))
    assert good
    line = next(line for line in printed.splitlines() if "talk" in line)
    assert line.split()[1:4] == ["6", "2", "1"]
    assert line.split()[-1] == "all"
    assert "1 of 1 conversations fully answered" in printed


async def test_a_wrong_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the message and what came instead, whatever it looks like."""
    monkeypatch.setattr(
        "gateway.pipeline.turn.notices.answer_text", lambda _: "[/b] something else"
    )
    good, printed = await play(tmp_path, recording(tmp_path, TALK))
    assert not good
    assert "message 1 was answered with '[/b] something else'" in printed
    assert "0 of 1 conversations fully answered" in printed


async def test_several_files_are_played(tmp_path: Path) -> None:
    """Each with its own line."""
    files = [recording(tmp_path, TALK, f"talk{n}") for n in range(12)]
    good, printed = await play(tmp_path, *files)
    assert good
    assert "12 of 12" in printed


async def test_compactions_are_shown(tmp_path: Path) -> None:
    """Each answer comes all the same; the line counts them, a table tells tokens and why."""
    good, printed = await play(tmp_path, recording(tmp_path, long_talk()), window=16_000)
    assert good, printed
    lines = [line for line in printed.splitlines() if line.startswith("talk")]
    assert int(lines[0].split()[6]) >= 1
    listed = lines[1].split()
    before, after = (int(cell.replace(",", "")) for cell in listed[1:3])
    assert 8_000 <= before <= 16_000
    assert after <= 4_800
    assert "threshold" in listed


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["compressor", "rounds"])
async def test_all_answers_come_with_either_engine(tmp_path: Path, engine: str) -> None:
    """Also in a window so small that `rounds` leaves it to the compressor."""
    file = recording(tmp_path, long_talk(20))
    good, printed = await play(tmp_path, file, window=8_000, engine=engine)
    assert good, printed
    assert "compactions of" in printed


async def test_plugins_are_those_of_the_home(tmp_path: Path) -> None:
    """An engine can be tried on one's own history before it is used."""
    folder = tmp_path / "home" / "plugins" / "context_engine" / "mine"
    folder.mkdir(parents=True)
    (folder / "engine.py").write_text(PLUGIN)
    file = recording(tmp_path, long_talk())
    good, printed = await play(tmp_path, file, window=16_000, engine="mine")
    assert "compactions of" in printed
    assert good, printed


async def test_no_summary_model_is_asked(tmp_path: Path) -> None:
    """A replay costs nothing, whatever the settings say."""
    auxiliary = {"compression": {"provider": "openai", "base_url": "http://127.0.0.1:9"}}
    settings = settings_of(tmp_path, auxiliary=auxiliary, model={"context_length": 16_000})
    good, printed = await play_with(settings, recording(tmp_path, long_talk(20, 300)))
    assert good, printed
    assert " extractor" in printed


async def test_a_notice_is_not_taken_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hygiene tells the user when it takes long."""
    monkeypatch.setattr("gateway.pipeline.turn.TELL_AFTER_S", 0)
    monkeypatch.setattr("gateway.pipeline.turn.HYGIENE_SHARE", 0)
    good, printed = await play(tmp_path, recording(tmp_path, TALK * 3))
    assert good, printed


def bill(printed: str, name: str = "talk") -> list[str]:
    """Return the cells of a conversation's bill."""
    lines = printed[printed.index("what it would have cost") :].splitlines()
    return next(line.removeprefix(name).split() for line in lines if line.startswith(name))


async def test_a_conversation_is_billed(tmp_path: Path) -> None:
    """Requests, tokens, hits, billed ÷ minimum and money; without pauses nearly the least."""
    good, printed = await play(tmp_path, recording(tmp_path, long_talk()))
    assert good, printed
    requests, *_, hits, ratio, cost = bill(printed)
    assert (requests, cost[:2]) == ("14", "~$")
    assert float(hits) > 0.8
    assert 1 <= float(ratio) <= 1.05


@pytest.mark.thorough
async def test_a_replay_can_be_repeated(tmp_path: Path) -> None:
    """The same compactions, the same bill."""
    files = [recording(tmp_path, long_talk(20), f"talk{n}") for n in range(2)]
    options: dict[str, Any] = {"window": 16_000, "gap_s": 600}
    outcomes = [await play(tmp_path, *files, **options) for _ in range(2)]
    assert outcomes[0][0]
    assert bill(outcomes[0][1], "all conversations") == bill(outcomes[1][1], "all conversations")


@pytest.mark.thorough
async def test_pauses_cost_what_the_cache_has_lost(tmp_path: Path) -> None:
    """Entries that live for an hour outlast more of them, and are dearer to write."""
    file = recording(tmp_path, TALK * 20)
    found = [
        bill((await play(tmp_path, file, gap_s=gap_s, ttl=ttl))[1])
        for gap_s, ttl in ((0, "5m"), (600, "5m"), (600, "1h"))
    ]
    steady, paused, long_lived = (float(cells[-3]) for cells in found)
    assert steady >= long_lived > paused


async def test_a_price_that_is_not_known_is_not_made_up(tmp_path: Path) -> None:
    """The tokens are billed all the same."""
    settings = settings_of(tmp_path, model={"name": "claude-next"}, budget={"daily_usd": 1})
    good, printed = await play_with(settings, recording(tmp_path, TALK))
    assert good
    assert bill(printed)[-2:] == ["unknown", "price"]
    assert "claude-next: unknown price" in printed


async def test_a_budget_ends_no_replay(tmp_path: Path) -> None:
    """Nobody sends a bill."""
    good, printed = await play_with(
        settings_of(tmp_path, budget={"daily_usd": 0.000001}), recording(tmp_path, TALK)
    )
    assert good, printed


def test_a_model_is_called_as_it_is_configured(tmp_path: Path) -> None:
    """Not as the table spells it."""
    assert facts_in(settings_of(tmp_path, model={"name": "gpt-6.1-terra"})).name == "gpt-6.1-terra"


def test_the_window_has_a_default(tmp_path: Path) -> None:
    """The real model, whose window it would be, is not played with."""
    assert window_of(settings_of(tmp_path)) == 200_000


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"window": 12},
            "12 in --context-length is not allowed; must be greater than or equal to 1024",
        ),
        ({"threshold": 0.0}, "compression.threshold: 0.0 in --threshold is not allowed; must be"),
        (
            {"threshold": 50},
            "compression.threshold: 50.0 in --threshold is not allowed; must be less",
        ),
        ({"threshold": "nan"}, "compression.threshold: nan in --threshold is not allowed"),
        ({"engine": ""}, "context.engine: '' in --engine is not allowed"),
        ({"engine": "x"}, f"--engine x: there is no engine 'x'; there are: {ENGINES}"),
        (
            {"strategy": "x"},
            "'x' in --strategy is not allowed; must be 'system_and_3' or 'anchored'",
        ),
        (
            {"ttl": "1d"},
            "prompt_caching.cache_ttl: '1d' in --cache-ttl is not allowed; must be '5m' or '1h'",
        ),
    ],
)
def test_a_bad_option_is_one_line(
    parley: Run, tmp_path: Path, options: dict[str, Any], line: str
) -> None:
    """It names the setting, and what is allowed."""
    words = [part for name, it in options.items() for part in (f"--{name}", f"{it}")]
    done = parley("replay", str(recording(tmp_path, TALK)), *words)
    assert line in one_line(done)


def test_the_command_takes_each_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the settings that they replace."""
    given = {"window": 9000, "engine": "rounds", "threshold": 0.4, "ttl": "1h", "gap": 600}
    options = [part for name, it in given.items() for part in (f"--{name}", f"{it}")]
    taken = AsyncMock(return_value=True)
    monkeypatch.setattr("gateway.cli.replay.play_files", taken)
    monkeypatch.setattr(main, "log_problems_only", lambda: None)
    words = ["replay", "x", *options, "--strategy", "anchored"]
    result = CliRunner().invoke(main.app, ["--home", f"{tmp_path}", *words])
    assert result.exit_code == 0, result.output
    settings, *_, gap_s = taken.call_args.args
    assert (settings.context.engine, window_of(settings), gap_s) == ("rounds", 9000, 600)
    assert (settings.prompt_caching.strategy, settings.prompt_caching.cache_ttl) == (
        "anchored",
        "1h",
    )


@pytest.mark.parametrize("content", ["", "{}", "[1]"])
async def test_a_file_of_no_known_format(tmp_path: Path, content: str) -> None:
    """The error names it."""
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(SettingsError, match=r"cannot replay .*bad\.json"):
        await play(tmp_path, file)


async def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """As clear as the others."""
    with pytest.raises(SettingsError, match="cannot replay"):
        await play(tmp_path, tmp_path / "nothing.json")


if SHARED is not None:
    AIRLINE = SHARED / "tau-bench" / "gpt-4o-airline.json"

    @pytest.mark.thorough
    async def test_real_conversations_are_fully_answered(tmp_path: Path) -> None:
        """All 200 dialogues of tau-bench, with their tools."""
        good, printed = await play(tmp_path, AIRLINE)
        assert good, printed
        assert "200 of 200" in printed
