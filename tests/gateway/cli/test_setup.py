"""`parley setup`: the questions in a terminal, and the answers from a file."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.anthropic_server import AnthropicServer
from tests.support.bot_api import TOKEN, BotApi
from tests.support.command_line import Run as Parley
from tests.support.discord.server import TOKEN as DISCORD_TOKEN
from tests.support.discord.server import DiscordServer
from tests.support.first_answer import KEY, Stranger, environment
from tests.support.model_server import Fault, Reply
from tests.support.process import ParleyProcess, free_port
from tests.support.slack.server import SlackServer

PROVIDER = ("Which one (number or name)", "1")
MODEL = (PROVIDER, ("Key (not shown", KEY), ("Model", ""))
NO_DISCORD_AND_SLACK = (("bot token (not shown", ""), ("OAuth Token (not shown", ""))
END = (("Which one", "1"),)


@pytest.fixture
async def api() -> AsyncIterator[BotApi]:
    """Telegram."""
    async with BotApi() as server:
        yield server


@pytest.fixture
async def model() -> AsyncIterator[AnthropicServer]:
    """Anthropic, which takes one key."""
    async with AnthropicServer(KEY, default=Reply(text="ready")) as server:
        yield server


@pytest.fixture
def stranger(tmp_path: Path, api: BotApi, model: AnthropicServer) -> Stranger:
    """Somebody at a terminal whose servers are these."""
    return Stranger(tmp_path / "home", environment(api, model))


async def talk(stranger: Stranger, *turns: tuple[str, str]) -> int:
    """Answer the questions; return the exit code."""

    def at_the_terminal() -> int:
        terminal = stranger.terminal("setup")
        stranger.type(terminal, *turns)
        return stranger.end(terminal)

    return await asyncio.to_thread(at_the_terminal)


def written(stranger: Stranger) -> Any:
    """Return what stands in the settings."""
    return yaml.safe_load((stranger.home / "parley.yaml").read_text())


@pytest.mark.thorough
async def test_what_is_refused_is_asked_for_again(stranger: Stranger, api: BotApi) -> None:
    """A wrong key, a key of another kind, a token of another platform, a wrong token."""
    turns = (
        PROVIDER,
        ("Key (not shown", TOKEN),
        ("Key (not shown", "sk-ant-wrong"),
        ("Model", ""),
        *MODEL,
        ("bot token (not shown", "xoxb-1-2-3"),
        ("bot token (not shown", "12345:wrong-token"),
        ("bot token (not shown", TOKEN),
        *NO_DISCORD_AND_SLACK,
        ("Or name yourself", "somebody"),
        ("Or name yourself", "telegram:4711"),
        *END,
    )
    assert await talk(stranger, *turns) == 0
    assert "the provider refuses the key; keys are made at https://console.anth" in stranger.seen
    assert "this is Telegram's bot token" in stranger.seen
    assert "this is Slack's Bot User OAuth Token" in stranger.seen
    assert "Telegram does not know this bot" in stranger.seen
    assert "must be PLATFORM:ID" in stranger.seen
    assert written(stranger) == {
        "model": {"provider": "anthropic", "name": "claude-sonnet-5-5", "api_key": KEY},
        "platforms": {"telegram": {"token": TOKEN}},
        "access": {"owners": ["telegram:4711"]},
    }


@pytest.mark.thorough
async def test_what_is_skipped_is_not_written(stranger: Stranger) -> None:
    """And where all is, there is no file."""
    turns = (
        ("Which one (number or name)", ""),
        ("bot token (not shown", ""),
        *NO_DISCORD_AND_SLACK,
    )
    assert await talk(stranger, *turns) == 0
    assert "Nothing was changed" in stranger.seen
    assert not (stranger.home / "parley.yaml").exists()


@pytest.mark.thorough
async def test_ctrl_c_leaves_nothing(stranger: Stranger) -> None:
    """Also at the last question but one."""
    turns = (
        *MODEL,
        ("bot token (not shown", TOKEN),
        *NO_DISCORD_AND_SLACK,
        ("Or name yourself", "\x03"),
    )
    assert await talk(stranger, *turns) != 0
    assert [file for file in stranger.home.rglob("*") if file.is_file()] == []


@pytest.mark.thorough
async def test_a_missing_intent_is_named_before_anything_is_written(
    stranger: Stranger, api: BotApi, model: AnthropicServer
) -> None:
    """With the page on which it is switched on; the token is kept all the same."""
    async with DiscordServer() as discord:
        discord.bot.privileged = False
        environ = {
            **environment(api, model),
            "PARLEY_PLATFORMS__DISCORD__API_URL": discord.api_url,
        }
        someone = Stranger(stranger.home, environ)
        turns = (
            ("Which one (number or name)", ""),
            ("bot token (not shown", ""),
            ("bot token (not shown", DISCORD_TOKEN),
            ("OAuth Token (not shown", ""),
            ("Or name yourself", ""),
            *END,
        )
        assert await talk(someone, *turns) == 0
        page = f"https://discord.com/developers/applications/{discord.bot.id}/bot"
    assert "the Message Content intent is off" in someone.seen
    assert page in someone.seen
    assert written(someone) == {"platforms": {"discord": {"token": DISCORD_TOKEN}}}


@pytest.mark.thorough
async def test_a_file_that_is_there_is_changed_only_after_a_yes(stranger: Stranger) -> None:
    """What changes is shown, without secrets; all else stays."""
    stranger.home.mkdir()
    file = stranger.home / "parley.yaml"
    before = "# mine\nweb: {host: 127.0.0.1} # here\nmodel: {provider: openai, name: gpt}\n"
    file.write_text(before)
    skipped = (("bot token (not shown", ""), *NO_DISCORD_AND_SLACK, ("Which one", "1"))
    assert await talk(stranger, *MODEL, *skipped, ("Write that?", "n")) == 0
    assert file.read_text() == before
    turns = (*MODEL, *skipped, ("Write that?", "y"))
    assert await talk(stranger, *turns) == 0
    assert "model.provider: openai → anthropic" in stranger.seen
    assert "model.api_key: new" in stranger.seen
    assert file.read_text().startswith("# mine\nweb: {host: 127.0.0.1} # here\n")
    assert written(stranger)["model"]["api_key"] == KEY


async def test_a_second_run_sets_owner_and_keeping(stranger: Stranger) -> None:
    """With nothing else answered; Enter keeps the owner that is there."""
    stranger.home.mkdir()
    file = stranger.home / "parley.yaml"
    file.write_text(f"# mine\nplatforms: {{telegram: {{token: '{TOKEN}'}}}} # here\n")
    skipped = (("Which one (number or name)", ""), ("bot token (not shown", ""))
    skipped += NO_DISCORD_AND_SLACK
    owner = (("Or name yourself", "somebody"), ("Or name yourself", "telegram:4711"))
    assert await talk(stranger, *skipped, *owner, ("Which one", ""), ("Write that?", "y")) == 0
    assert "must be PLATFORM:ID" in stranger.seen
    assert written(stranger)["access"] == {"owners": ["telegram:4711"]}
    turns = (("Who, as PLATFORM:ID [telegram:4711]", ""), ("Which one", "3"), ("Which one", "2"))
    assert await talk(stranger, *skipped, *turns, ("Write that?", "y")) == 0
    assert "set PARLEY_PLATFORMS__TELEGRAM__TOKEN to what" in stranger.seen
    assert "platforms.telegram.token: no longer in this file" in stranger.seen
    assert TOKEN not in stranger.seen + file.read_text()
    assert file.read_text().startswith("# mine\n")
    kept = stranger.home / "secrets" / "platforms.telegram.token"
    assert kept.read_text() == f"{TOKEN}\n"
    after = (("Who, as PLATFORM:ID [telegram:4711]", "telegram:1 telegram:2"),)
    assert await talk(stranger, *skipped, *after, ("Write that?", "y")) == 0
    assert '["telegram:4711"] → ["telegram:1", "telegram:2"]' in stranger.seen
    assert written(stranger)["access"] == {"owners": ["telegram:1", "telegram:2"]}


@pytest.mark.thorough
async def test_without_a_network_a_key_may_be_kept(stranger: Stranger, api: BotApi) -> None:
    """It could not be tried, which is said."""
    environ = dict(stranger.environ)
    environ["PARLEY_MODEL__BASE_URL"] = f"http://127.0.0.1:{free_port()}"
    someone = Stranger(stranger.home, environ)
    turns = (
        *MODEL,
        ("could not be tried. Keep it?", "y"),
        ("bot token (not shown", ""),
        *NO_DISCORD_AND_SLACK,
        *END,
    )
    assert await talk(someone, *turns) == 0
    assert "the provider does not answer now" in someone.seen
    assert written(someone)["model"]["api_key"] == KEY


async def unattended(stranger: Stranger, answers: str, *options: str) -> tuple[int, Any]:
    """Run `parley setup --from … --yes --json`; return the exit code and the report."""
    file = stranger.home.with_name("answers.yaml")
    file.write_text(answers)
    process = ParleyProcess(stranger.home, environ=dict(stranger.environ))
    ended = await process.run("setup", "--from", str(file), "--yes", "--json", *options)
    return ended.code, json.loads(ended.stdout) if ended.stdout else ended.stderr


ANSWERS = f"""
model: {{provider: anthropic, api_key: {KEY}}}
platforms: {{telegram: {{token: '{TOKEN}'}}}}
"""


async def test_answers_from_a_file_are_tried_and_written(stranger: Stranger) -> None:
    """The report has what each key became, and no secret."""
    code, report = await unattended(stranger, ANSWERS + "setup: {secrets: files}\n")
    assert (code, report["written"]) == (0, str(stranger.home / "parley.yaml"))
    assert [each["outcome"] for each in report["checks"]] == ["accepted", "accepted"]
    assert report["checks"][0]["cost_usd"] > 0
    assert len(report["secrets"]) == 2
    assert KEY not in json.dumps(report)
    assert TOKEN not in json.dumps(report)


async def test_a_second_run_from_a_file_moves_secrets(stranger: Stranger) -> None:
    """Those that the file of answers does not name, too."""
    await unattended(stranger, ANSWERS)
    second = "access: {owners: ['telegram:1']}\nsetup: {secrets: files}\n"
    code, report = await unattended(stranger, second)
    assert (code, len(report["secrets"])) == (0, 2)
    text = (stranger.home / "parley.yaml").read_text()
    assert not [each for each in (KEY, TOKEN) if each in text + json.dumps(report)]
    assert written(stranger)["access"] == {"owners": ["telegram:1"]}
    assert (await unattended(stranger, second))[0] == 0
    assert (stranger.home / "parley.yaml").read_text() == text


@pytest.mark.thorough
async def test_a_second_run_of_the_same_answers_changes_nothing(stranger: Stranger) -> None:
    """As a tool that sets machines up will do."""
    await unattended(stranger, ANSWERS)
    file = stranger.home / "parley.yaml"
    before = file.read_text()
    assert (await unattended(stranger, ANSWERS))[0] == 0
    assert file.read_text() == before


async def test_a_refused_key_writes_nothing(stranger: Stranger, model: AnthropicServer) -> None:
    """Exit code 2, and why."""
    model.script(Fault(status=401, error="authentication_error"))
    code, report = await unattended(stranger, ANSWERS)
    assert (code, report["written"]) == (2, None)
    assert report["checks"][0]["outcome"] == "refused"
    assert not (stranger.home / "parley.yaml").exists()


@pytest.mark.thorough
async def test_what_lacks_something_is_written_with_another_exit_code(stranger: Stranger) -> None:
    """A scope of Slack's is missing: 3."""
    async with SlackServer() as slack:
        slack.api.scopes -= {"files:read"}
        block = {
            "bot_token": slack.identity.bot_token,
            "app_token": slack.identity.app_token,
            "base_url": slack.base_url,
        }
        answers = {"model": {"provider": "offline"}, "platforms": {"slack": block}}
        environ = {"PATH": os.environ["PATH"]}
        someone = Stranger(stranger.home, environ)
        code, report = await unattended(someone, yaml.safe_dump(answers))
    assert (code, report["written"]) == (3, str(stranger.home / "parley.yaml"))
    assert "add files:read" in report["checks"][1]["lacks"][0]


async def test_answers_that_contradict_each_other_are_exit_code_1(stranger: Stranger) -> None:
    """As for every command."""
    code, told = await unattended(stranger, "access: {owners: [nobody]}")
    assert code == 1
    assert "must be PLATFORM:ID" in told


def test_without_a_terminal_the_other_way_is_named(parley: Parley) -> None:
    """No question hangs in a script."""
    result = parley("setup")
    assert result.code == 1
    assert "--from FILE --yes" in result.err


def test_a_file_of_answers_runs_nothing_without_a_yes(parley: Parley, tmp_path: Path) -> None:
    """Its secrets may be commands, to which no person at a terminal agreed."""
    ran = tmp_path / "ran"
    answers = tmp_path / "answers.yaml"
    answers.write_text(f"model: {{provider: openai, api_key: 'command:touch {ran}'}}\n")
    result = parley("setup", "--from", str(answers))
    assert (result.code, ran.exists()) == (2, False)
    assert "nothing was tried or written" in result.err


def test_options_of_the_other_way_are_refused(parley: Parley) -> None:
    """`--yes` alone would say yes to questions that were never shown."""
    assert "--from" in parley("setup", "--yes").err
