"""`parley sessions`: lists, messages, lineages and exports, printed from the database's file."""

import stat
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import Connection

from adapters.messages import Address
from agent.messages import ChatMessage, Usage, assistant_message, decode, tool_message
from agent.view.view import Edit, Summary, ViewPlan
from gateway.cli import main
from gateway.cli import sessions as export
from gateway.storage.conversation import conversations, turn_journal, turns
from gateway.storage.conversation.turn_journal import TurnEnd
from gateway.storage.queue import leases
from gateway.storage.queue.inbox import InboxKind
from gateway.storage.schema import session
from tests.support.command_line import Result, Run, one_line
from tests.support.scripted_model import tool_call
from tests.support.storage import (
    Store,
    admit,
    begin_anew,
    begin_turn,
    claim_one,
    compact,
    inbound,
    made_newer,
    model_call,
    outdated_file,
    parts,
    turn_of,
)

TITLE = "Find [red]it[/red]"
SUMMARY = "## Goal\nFind it.\n\n## Done\n1. looked\n2. [b]saw\x1b[31m it"
PLAN = ViewPlan(
    head_upto=1,
    summaries=(Summary(SUMMARY, 2, 3, "assistant", "model"),),
    tail_from=4,
    edits=(Edit(4, "clip", 99),),
)
LONG = "a word and another one " * 100


@pytest.fixture
def sessions(parley: Run) -> Run:
    """Run `parley sessions …`."""
    return partial(parley, "sessions")


@pytest.fixture
def talked(store: Store) -> Store:
    """One conversation: question, call, result | compaction | more, answer. Another one waits."""
    current = store.run(turn_of, TITLE)
    call = tool_call("look", {"where": "there"}, "c1")
    asked = ChatMessage(role="assistant", content=None, tool_calls=[call])
    store.run(turn_journal.record_message, current, asked, model_call(Usage(90, 9)))
    result = tool_message("c1", "look", "```\nseen\x9b31m\n```")
    store.run(turn_journal.record_result, current, result, "ok")
    figures = {"summary_model": "small-1", "retained_share": 0.96, "failure": "once [/x]"}
    current = store.run(compact, current, PLAN, **figures)
    store.run(
        turn_journal.record_message, current, assistant_message(LONG), model_call(Usage(21_345, 7))
    )
    end = TurnEnd("final_text", model_call(Usage(22_222, 3)))
    store.run(turn_journal.commit, current, [assistant_message("It is here.")], parts(current), end)
    store.run(admit, inbound("hi", chat="7"))
    return store


def words(line: str) -> str:
    return " ".join(line.split())


def test_the_list_shows_every_conversation(sessions: Run, talked: Store) -> None:
    """Id, place, whose, title with the segment's number, segments, messages, time, size."""
    head, second, first = sessions("list").out.splitlines()
    assert words(head).startswith(
        "id platform chat thread sender title segments messages last activity"
    )
    assert words(first).startswith(f"1 telegram 42 - 42 {TITLE} #2 2 5 20")
    assert words(first).endswith("Z 22,222")
    assert words(second).startswith("2 telegram 7 - 7 hi 1 0 20")
    assert words(second).endswith("Z -")


def test_the_list_marks_what_is_estimated(sessions: Run, store: Store) -> None:
    """Between a compaction and the next call nobody knows the real size."""
    store.run(compact, store.run(turn_of, "hello"), ViewPlan(tail_from=1), tokens_after=12_345)
    assert sessions("list").out.splitlines()[1].endswith("~12,345")


def test_the_list_of_an_empty_database(sessions: Run, store: Store) -> None:
    """It says so."""
    assert sessions("list").out == "there are no conversations\n"


def test_the_list_as_json(sessions: Run, talked: Store) -> None:
    """Thread and sender where there are any; a control character is escaped."""
    group = Address("telegram", "default", "-1", "7")
    talked.run(admit, inbound("one\x9btwo", address=group, chat_kind="thread"))
    printed = sessions("list", "--json").out
    third, _, first = map(orjson.loads, printed.splitlines())
    assert (first["thread"], first["sender"], first["title"]) == (None, "42", TITLE)
    assert (third["thread"], third["sender"], third["title"]) == ("7", None, "one\x9btwo")
    assert "\x9b" not in printed


def segments_of(printed: str) -> list[list[str]]:
    """Return the lines of each segment, without empty ones: heading, when and why, the rest."""
    parts = printed.split("\n## ")[1:]
    return [[line for line in part.splitlines() if line] for part in parts]


def test_lineage_prints_segments_and_figures(sessions: Run, talked: Store) -> None:
    """Why each began and ended, and every figure of its compaction."""
    printed = sessions("lineage", "1").out
    assert printed.startswith(f"# {TITLE}\n\nConversation 1 on telegram, chat 42: 5 messages.\n")
    first, second = segments_of(printed)
    assert first[0] == f"{TITLE} (session 1)"
    assert first[1].startswith("20")
    assert first[1].endswith("Z (compression)")
    assert second[0] == f"{TITLE} #2 (session 2)"
    assert second[1].startswith("20")
    assert second[1].endswith("Z (compression), active")
    assert second[2] == (
        "threshold, compressor, level summary; 100,000 to ~20,000 (21,345 reported) tokens;"
        " 400 to 30 messages; small-1, 1.2 s; 90,000 cached tokens lost;"
        " 96% of the key facts kept; summary model failed: once [/x]"
    )


def test_lineage_prints_the_first_lines_of_a_summary(sessions: Run, talked: Store) -> None:
    """As a whole only where that is asked for; control characters are spelled out."""
    short, whole = sessions("lineage", "1").out, sessions("lineage", "1", "--summaries").out
    assert "summary of messages 2 to 3 (model):" in short
    assert "Find it." in short
    assert "... (6 lines; --summaries shows them)" in short
    assert "saw" not in short
    assert r"2. [b]saw\x1b[31m it" in whole
    assert "--summaries" not in whole


def test_lineage_prints_a_summary_once(sessions: Run, talked: Store) -> None:
    """A segment that takes over its parent's summary does not repeat it."""
    talked.run(turns.hide_newest, 1)
    printed = sessions("lineage", "1").out
    assert printed.count("summary of messages") == 1
    assert segments_of(printed)[-1][0] == f"{TITLE} #3 (session 4)"
    assert printed.rstrip().endswith("(retry), active")


def test_lineage_prints_each_lineage(sessions: Run, talked: Store) -> None:
    """`/new` begins another one, which has no compaction yet."""
    talked.run(begin_anew, 1)
    *_, newest = segments_of(sessions("lineage", "1").out)
    assert newest[0].endswith("(session 4)")
    assert "#" not in newest[0]
    assert newest[-1].endswith("Z (new), active")


def answer(conn: Connection, text: str, *, kind: InboxKind = "message") -> None:
    """Have an entry answered, and give its conversation back."""
    conversation, _ = admit(conn, inbound(text), kind=kind)
    current = begin_turn(conn, claim_one(conn, conversation))
    end = TurnEnd("final_text", model_call(Usage(5, 3)))
    turn_journal.commit(conn, current, [assistant_message("Yes.")], parts(current), end)
    leases.release(conn, current.lease)


@pytest.fixture
def begun_anew(store: Store) -> Store:
    """A conversation with two segments, begun anew by `/new` with words and by a reset."""
    store.run(answer, TITLE)
    store.run(turns.hide_newest, 1)
    store.run(answer, "And then?")
    store.run(begin_anew, 1)
    store.run(conversations.change, 1, title="Plan a trip")
    store.run(answer, "/new  Plan a\ntrip", kind="command")
    store.run(begin_anew, 1, "daily")
    store.run(conversations.change, 1, title="Hi")
    store.run(answer, "Hi")
    return store


def test_each_lineage_has_the_title_that_it_began_with(sessions: Run, begun_anew: Store) -> None:
    """The conversation is named after the newest one; its second segment keeps its number."""
    printed = segments_of(sessions("lineage", "1").out)
    named = [f"{TITLE} (session 1)", f"{TITLE} #2 (session 2)", "Plan a trip (session 3)"]
    assert [lines[0] for lines in printed] == [*named, "Hi (session 4)"]
    records = exported(sessions("export", "1"))
    assert records[0]["title"] == "Hi"
    titles = [each["title"] for each in records if each["type"] == "segment"]
    assert titles == [TITLE, f"{TITLE} #2", "Plan a trip", "Hi"]


def test_a_document_names_its_lineages(sessions: Run, begun_anew: Store) -> None:
    """Its head is what the list says."""
    text = sessions("export", "1", "--format", "md").out
    assert [words(line) for line in text.splitlines() if line.startswith(("# ", "## "))][:4] == [
        "# Hi",
        f"## {TITLE} (session 1)",
        f"## {TITLE} #2 (session 2)",
        "## Plan a trip (session 3)",
    ]


def test_an_estimate_alone_is_printed_before_the_next_call(sessions: Run, store: Store) -> None:
    """Without report, model, or key facts there is nothing about them."""
    store.run(compact, store.run(turn_of, "hello"), ViewPlan(tail_from=1), level="prune")
    figures = words(sessions("lineage", "1").out.splitlines()[-1])
    assert "level prune; 100,000 to ~20,000 tokens;" in figures
    assert figures.endswith("no model, 1.2 s; 90,000 cached tokens lost")


def exported(result: Result) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in result.out.splitlines()]


def test_an_export_holds_everything(sessions: Run, talked: Store) -> None:
    """Each segment before what was recorded in it; messages with their exact content."""
    talked.run(turns.hide_newest, 1)
    records = exported(sessions("export", "1"))
    kinds = [(each["type"], each.get("seq") or each["id"]) for each in records]
    assert kinds == [
        ("conversation", 1),
        ("segment", 1),
        *(("message", seq) for seq in (1, 2, 3)),
        ("segment", 2),
        *(("message", seq) for seq in (4, 5)),
        ("segment", 4),
    ]
    stored = [decode(body) for body in talked.bodies(1)]
    assert [each["message"] for each in records if each["type"] == "message"] == stored


def test_an_export_holds_plans_and_figures(sessions: Run, talked: Store) -> None:
    """What each segment showed can be told from the export alone."""
    head, first, *_, second = [it for it in exported(sessions("export", "1")) if "seq" not in it]
    assert (head["title"], head["messages"], head["segments"]) == (TITLE, 5, 2)
    assert (first["compaction"], first["end_reason"]) == (None, "compression")
    assert second["title"] == f"{TITLE} #2"
    assert second["plan"]["summaries"][0]["text"] == SUMMARY
    assert second["compaction"]["tokens_after_reported"] == 21_345
    assert second["ended_at"] is None


def test_an_export_holds_no_raw_control_characters(sessions: Run, talked: Store) -> None:
    """JSON allows some of them as they are; a terminal would obey them."""
    for form in ("json", "md"):
        text = sessions("export", "1", "--format", form).out
        assert not [char for char in text if not char.isprintable() and char != "\n"]


def test_a_long_export_is_read_page_by_page(
    sessions: Run, talked: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost or repeated between two pages."""
    monkeypatch.setattr(export, "EXPORT_PAGE", 2)
    records = exported(sessions("export", "1"))
    assert [each["seq"] for each in records if "seq" in each] == [1, 2, 3, 4, 5]


def test_an_export_in_markdown(sessions: Run, talked: Store) -> None:
    """Headings for segments and messages; what tools said is code, whatever is in it."""
    text = sessions("export", "1", "--format", "md").out
    assert text.startswith(f"# {TITLE}\n\nConversation 1 on telegram, chat 42: 5 messages.\n")
    assert f"\n## {TITLE} #2 (session 2)\n" in text
    assert "\n> ## Goal\n> Find it.\n>\n> ## Done\n" in text
    assert 'Call of look:\n\n```\n{"where":"there"}\n```\n' in text
    assert "\n````\n```\nseen\\x9b31m\n```\n````\n" in text
    assert text.endswith("in view\n\nIt is here.\n")


def test_a_file_is_for_its_owner_alone(sessions: Run, talked: Store, tmp_path: Path) -> None:
    """It holds what would have been printed, and its size is told."""
    file = tmp_path / "out" / "talk.jsonl"
    file.parent.mkdir()
    printed = sessions("export", "1").out
    told = sessions("export", "1", "--out", str(file))
    assert file.read_text() == printed
    assert told.out == f"{file}: {file.stat().st_size:,} bytes\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_a_file_is_replaced_only_by_force(sessions: Run, talked: Store, tmp_path: Path) -> None:
    """Without --force it stays as it is."""
    file = tmp_path / "talk.md"
    file.write_text("mine")
    file.chmod(0o644)
    line = one_line(sessions("export", "1", "--out", str(file)))
    assert (line, file.read_text()) == (f"{file} exists; --force replaces it", "mine")
    assert sessions("export", "1", "--out", str(file), "--force", "--format", "md").code == 0
    assert file.read_text().startswith(f"# {TITLE}")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written_is_an_error(
    sessions: Run, talked: Store, tmp_path: Path
) -> None:
    """A folder in its place, also with --force, or a folder that is missing."""
    for options in ([], ["--force"]):
        line = one_line(sessions("export", "1", "--out", str(tmp_path), *options))
        assert line == f"{tmp_path} exists and is not a plain file"
    file = tmp_path / "missing" / "talk.jsonl"
    assert one_line(sessions("export", "1", "--out", str(file))).startswith(f"cannot write {file}")


def test_a_failed_export_leaves_the_file_as_it_was(talked: Store, tmp_path: Path) -> None:
    """Nor is a half one left beside it."""
    file = tmp_path / "out" / "talk.md"
    file.parent.mkdir()
    file.write_text("mine")

    def pieces() -> Iterator[str]:
        yield "half"
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        export.write_whole(file, pieces(), force=True)
    assert [path.read_text() for path in file.parent.iterdir()] == ["mine"]


@pytest.mark.parametrize("command", ["lineage", "export"])
@pytest.mark.parametrize("bad", ["x", "", "1.5", "\u0663", "9" * 30, "4711", "0"])
def test_a_bad_conversation_is_one_line(
    sessions: Run, talked: Store, command: str, bad: str
) -> None:
    """Whatever it is, the line says what was asked for."""
    line = one_line(sessions(command, bad))
    assert "conversation" in line
    assert bad in line


def test_without_a_database_there_is_one_line(sessions: Run) -> None:
    """Looking creates none."""
    assert "there is no database" in one_line(sessions("list"))


def test_an_older_database_is_not_read(sessions: Run, tmp_path: Path) -> None:
    """It says what brings it up to date, and changes nothing."""
    outdated_file(tmp_path / "parley.db", "0001")
    assert "`parley db migrate`" in one_line(sessions("list"))


def test_a_newer_database_is_not_read(sessions: Run, store: Store) -> None:
    """It says that another version has written it."""
    store.run(made_newer)
    assert "9999" in one_line(sessions("list"))


def test_looking_changes_nothing(sessions: Run, talked: Store) -> None:
    """Also while a gateway has the file open."""
    before = talked.rows(session)
    for command in (["list"], ["lineage", "1"], ["export", "1"]):
        assert sessions(*command).code == 0
    assert talked.rows(session) == before


def test_another_home_is_looked_at(
    sessions: Run, talked: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--home` goes before the environment."""
    monkeypatch.setenv("PARLEY_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(sys, "argv", ["parley", "--home", str(tmp_path), "sessions", "list"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert not ended.value.code
