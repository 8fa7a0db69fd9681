"""Tests mirror the product, file by file: who changes a file finds its tests at the first guess."""

from collections.abc import Iterator
from pathlib import Path

from tests.house.source import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
DOUBLE = "the double itself, by what the real one does and refuses"
BOTH_SDKS = "one suite for the clients of all providers: each must behave like the others"
CHECK = "what a platform says of its tokens, by a function of client.py, before anything runs"
WAY_IN = "one of the two ways in of receive.py, behind a real HTTP server"
APART = {
    "adapters/discord/test_check.py": CHECK,
    "adapters/discord/test_conversations.py": "what the whole adapter makes of what comes in",
    "adapters/discord/test_edges.py": "what the whole adapter does where something is missing",
    "adapters/discord/test_server.py": DOUBLE,
    "adapters/discord/test_with_gateway.py": "the adapter with the gateway's own intake",
    "adapters/rendering/test_renderer.py": "what all of rendering costs, on every platform",
    "adapters/slack/test_bolt.py": "what Bolt hands on to receive.py, whatever Slack sends",
    "adapters/slack/test_check.py": CHECK,
    "adapters/slack/test_webhook.py": WAY_IN,
    "adapters/slack/test_working.py": "what stands beside the answers: several small files at once",
    "adapters/telegram/test_albums.py": "one kind of message, from the webhook to its files",
    "adapters/telegram/test_check.py": CHECK,
    "adapters/telegram/test_uploads.py": "the files that send.py sends, with chats of their own",
    "adapters/telegram/test_webhook.py": WAY_IN,
    "adapters/web/test_terminal.py": "`parley chat` against a real web chat",
    "adapters/web/test_uploads.py": "messages with files, from the form to the turn",
    "agent/context/test_ephemeral.py": "one kind of message, in all phases of a compaction",
    "agent/context/test_invariants.py": "what holds for all phases and engines (invariants 4 to 8)",
    "agent/models/openai/test_gemini.py": "one server whose dialect differs in many places",
    "agent/models/openai/test_roles.py": "each request in the forms of wire.py, by every template",
    "agent/models/test_connections.py": BOTH_SDKS,
    "agent/models/test_doubles.py": DOUBLE,
    "adapters/discord/test_shards.py": "one bot over several connections, in client and ingest",
    "agent/models/test_errors.py": BOTH_SDKS,
    "agent/models/test_faults.py": BOTH_SDKS,
    "agent/models/test_look_up.py": BOTH_SDKS,
    "agent/models/test_odd_streams.py": BOTH_SDKS,
    "agent/models/test_requests.py": BOTH_SDKS,
    "agent/models/test_scripted_model.py": DOUBLE,
    "agent/processes/test_unprivileged.py": "the sandbox for a user who may less than root",
    "agent/test_asking_images.py": "pictures, from the transcript to the request and back",
    "agent/test_tiktoken.py": "the counter on tiktoken, its files and its cache",
    "agent/plugins/test_list_engines.py": "engines that take lists of messages, as Hermes' do",
    "agent/test_planner_models.py": "the planner where the line of models changes below it",
    "gateway/pipeline/test_hygiene.py": "what turn.py does at 85 % of the window, before a turn",
    "gateway/storage/test_bytes.py": "what a message takes on the disk, in all tables",
    "gateway/storage/test_ephemeral.py": "one kind of row, wherever it is read",
    "gateway/storage/test_pages.py": "the pages of all long lists",
    "gateway/storage/test_rolling.py": "two versions on one schema: what migrations may do",
    "gateway/cli/test_complete.py": "what typer tells a shell at a Tab",
    "gateway/cli/test_homes_on_postgres.py": "all commands, where the database is on a server",
    "gateway/storage/test_races.py": "two transactions at once, whatever they are about",
    "gateway/storage/test_statements.py": "how SQLite plans the statements of a turn",
}
"""Tests that mirror no file, by their paths below tests/: why they stand by themselves."""


def files_of_tests() -> Iterator[Path]:
    """Yield all files of tests that stand in a room of the product, below tests/."""
    for top in PACKAGES:
        for file in sorted((ROOT / "tests" / top).rglob("test_*.py")):
            yield file.relative_to(ROOT / "tests")


def mirrors(test: Path) -> bool:
    """Whether a test is named after a file, a room, or a migration of the product."""
    name = test.stem.removeprefix("test_")
    if name.startswith("migrate_"):
        return any((ROOT / "migrations/versions").glob(f"{name.removeprefix('migrate_')}_*.py"))
    place = ROOT / test.parent / name
    return place.with_suffix(".py").exists() or place.is_dir()


def test_a_test_mirrors_a_file_or_says_why_not() -> None:
    """Else its file was moved without it, or it belongs to the tests of another one."""
    found = {str(test): mirrors(test) for test in files_of_tests()}
    assert found
    wrong = [
        f"{test} mirrors a file: strike it from APART"
        if is_one
        else f"{test}: name it after what it tests, or say in APART why not"
        for test, is_one in found.items()
        if is_one == (test in APART)
    ]
    assert wrong == []


def test_each_exception_is_there() -> None:
    """A list that names what is gone would hide what takes its name next."""
    assert set(APART) <= {str(test) for test in files_of_tests()}
