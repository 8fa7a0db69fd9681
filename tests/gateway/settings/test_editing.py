"""Changing one value of the settings file: nothing beside it changes, by a byte."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import SettingsError
from gateway.settings.editing import changed, set_values
from gateway.settings.sources import path_of
from gateway.settings.tree import KeyPath, placed

BEFORE = "# my settings\nmodel:\n    name: 'm'   # the good one\n"
AFTER = "queue: {mode: collect}  # end\n"


def set_value(path: Path, key: KeyPath, value: object, *check: Callable[[Path], object]) -> bool:
    """Write the value of one key."""
    return set_values(path, {key: value}, *check)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "context:\n  engine: rounds\n"),
        ("# only a comment", "# only a comment\ncontext:\n  engine: rounds\n"),
        ("---\n", "---\ncontext:\n  engine: rounds\n"),
        (BEFORE, BEFORE + "context: {engine: rounds}\n"),
        (BEFORE.rstrip(), BEFORE + "context: {engine: rounds}\n"),
        ("a: 1\n...\n", "a: 1\ncontext: {engine: rounds}\n...\n"),
        ("  a: 1\n", "  a: 1\n  context: {engine: rounds}\n"),
        ("a: |\n  text\n\n# end\n", "a: |\n  text\ncontext: {engine: rounds}\n\n# end\n"),
        ("a: |+\n  text\n\n# end\n", "a: |+\n  text\n\ncontext: {engine: rounds}\n# end\n"),
        ("a: >2+  # b\n  text\n\n...\n", "a: >2+  # b\n  text\n\ncontext: {engine: rounds}\n...\n"),
        ("a: !!str |+\r\n  b\r\n\r\n", "a: !!str |+\r\n  b\r\n\r\ncontext: {engine: rounds}\r\n"),
        ("context:\n  engine: |+\n    a\n\nb: 1\n", "context:\n  engine: rounds\nb: 1\n"),
        ("{a: 1}\n", "{context: {engine: rounds}, a: 1}\n"),
        ("{}\n", "{context: {engine: rounds}}\n"),
        ("context:\n", "context: {engine: rounds}\n"),
        ("context: null  # none\n", "context: {engine: rounds}  # none\n"),
        ("context: {}\n", "context: {engine: rounds}\n"),
        ("context: {rounds: {}}\n", "context: {engine: rounds, rounds: {}}\n"),
        ("context: {engine: a, b: 1}\n", "context: {engine: rounds, b: 1}\n"),
        ("context: {engine: }\n", "context: {engine: rounds }\n"),
        ("context:\n  engine: 'a'  # why\n", "context:\n  engine: rounds  # why\n"),
        ("context:\n  engine:\n", "context:\n  engine: rounds\n"),
        ('"context":\n  "engine": "a"\n', '"context":\n  "engine": rounds\n'),
        (
            "context:  # who\n\n    # archived\n    rounds: {}\n",
            "context:  # who\n\n    # archived\n    rounds: {}\n    engine: rounds\n",
        ),
        ("\ufeffcontext:\r\n  b: 1\r\n", "\ufeffcontext:\r\n  b: 1\r\n  engine: rounds\r\n"),
        ("? context\n: rounds: {}\n", "? context\n: rounds: {}\n  engine: rounds\n"),
        ("a: 1\r\n", "a: 1\r\ncontext: {engine: rounds}\r\n"),
    ],
)
def test_only_the_value_changes(tmp_path: Path, text: str, expected: str) -> None:
    """However the file is written."""
    path = tmp_path / "parley.yaml"
    path.write_bytes(text.encode())
    set_value(path, ("context", "engine"), "rounds")
    assert path.read_bytes().decode() == expected
    assert [each.name for each in tmp_path.iterdir()] == ["parley.yaml"]


DEEP = """\
tools:
  # what may be called
  enabled:   # the short list
    - todo
    # not yet
    - memory
  # who is asked
  approval: always
platforms:
  telegram: {name: a}
  slack:
    - name: office   # ours
      bot_token: xoxb-1
    - {name: club}
model: {facts: {vision: true}}
agent:
  instructions: |
    Be kind.

    Be short.

  # the end
"""


@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("tools.approval", "never", "approval: always", "approval: never"),
        (
            "tools.enabled",
            ["todo"],
            "\n    - todo\n    # not yet\n    - memory\n  #",
            '\n    ["todo"]\n  #',
        ),
        ("tools.output.max_lines", 5, "platforms:\n", "  output: {max_lines: 5}\nplatforms:\n"),
        ("platforms.telegram.token", "1:b", "{name: a}", '{token: "1:b", name: a}'),
        ("platforms.slack.0.bot_token", "xoxb-2", "xoxb-1", "xoxb-2"),
        (
            "platforms.slack.0.command",
            "/p",
            "bot_token: xoxb-1\n",
            "bot_token: xoxb-1\n      command: /p\n",
        ),
        ("platforms.slack.1.command", "/p", "{name: club}", "{command: /p, name: club}"),
        ("model.facts.vision", False, "vision: true", "vision: false"),
        ("model.name", "m, and more", "{facts:", '{name: "m, and more", facts:'),
        (
            "agent.instructions",
            "Go.\nOn.",
            "|\n    Be kind.\n\n    Be short.\n",
            '"Go.\\nOn."\n',
        ),
        (
            "queue.mode",
            "interrupt",
            "\n\n  # the end\n",
            "\nqueue: {mode: interrupt}\n\n  # the end\n",
        ),
    ],
)
def test_a_value_at_any_depth(
    tmp_path: Path, key: str, value: object, before: str, after: str
) -> None:
    """Comments and all other lines stay as they are."""
    path = tmp_path / "parley.yaml"
    path.write_text(DEEP)
    set_value(path, path_of(key), value)
    assert path.read_text() == DEEP.replace(before, after, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", {"provider": "offline"}),
        ("model", {}),
        ("model", None),
        ("model.facts", {"context_tokens": 9000}),
        ("model.facts", {}),
        ("tools", {"approval": "never", "output": {"max_lines": 5}}),
        ("platforms", {"telegram": [{"name": "b"}]}),
        ("platforms.telegram", {"token": "1:b"}),
        ("platforms.slack", [{"name": "new"}]),
        ("platforms.slack.1", {"command": "/p"}),
        ("platforms.slack.1", {}),
        ("agent.instructions", "Go."),
    ],
)
def test_a_value_replaces_all_that_was_below_its_key(
    tmp_path: Path, key: str, value: object
) -> None:
    """A section too is written as given, over whatever the file has there."""
    path = tmp_path / "parley.yaml"
    path.write_text(DEEP)
    set_value(path, path_of(key), value)
    assert yaml.safe_load(path.read_text()) == placed(yaml.safe_load(DEEP), path_of(key), value)


def test_one_of_several_blocks_is_named_by_its_number(tmp_path: Path) -> None:
    """Else nobody knows which is meant."""
    path = tmp_path / "parley.yaml"
    path.write_text(DEEP)
    with pytest.raises(SettingsError, match="there are 2 blocks; name one by its number"):
        set_value(path, path_of("platforms.slack.command"), "/p")
    with pytest.raises(SettingsError, match="there are 2 blocks"):
        set_value(path, path_of("platforms.slack.2.command"), "/p")
    assert path.read_text() == DEEP


def test_what_is_refused_is_not_written(tmp_path: Path) -> None:
    """The check reads the whole file as it would be."""
    path = tmp_path / "parley.yaml"
    path.write_text(DEEP)

    def refuse(draft: Path) -> None:
        assert "mode: nonsense" in draft.read_text()
        raise SettingsError("queue.mode: no")

    with pytest.raises(SettingsError, match=r"^queue\.mode: no$"):
        set_value(path, ("queue", "mode"), "nonsense", refuse)
    assert path.read_text() == DEEP
    assert [each.name for each in tmp_path.iterdir()] == ["parley.yaml"]


@pytest.mark.parametrize("name", ["on", "123", "null", "1e5", "-", "0x1f"])
def test_a_name_stays_text(tmp_path: Path, name: str) -> None:
    """Also where YAML would read something else."""
    path = tmp_path / "parley.yaml"
    set_value(path, ("context", "engine"), name)
    assert yaml.safe_load(path.read_text()) == {"context": {"engine": name}}


@pytest.mark.parametrize(
    "text",
    [
        "base: &b {rounds: {}}\ncontext: *b\n",
        "context:\n  engine: &name a\nother: *name\n",
        "context: &all {}\nother: *all\n",
        "null\n",
        "a: |+\n  text that a line below would end with a line break",
    ],
)
def test_what_only_a_person_can_change_is_left_alone(tmp_path: Path, text: str) -> None:
    """The error says what to write."""
    path = tmp_path / "parley.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"write `context: \{engine: rounds\}` into it by hand"):
        set_value(path, ("context", "engine"), "rounds")
    assert path.read_text() == text
    assert [each.name for each in tmp_path.iterdir()] == ["parley.yaml"]


def test_the_file_keeps_its_mode_and_its_place(tmp_path: Path) -> None:
    """Behind a link the file that it points to is changed; a new one is its owner's alone."""
    real = tmp_path / "elsewhere" / "real.yaml"
    set_value(real, ("context", "engine"), "rounds")
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    real.chmod(0o640)
    link = tmp_path / "parley.yaml"
    link.symlink_to(real)
    set_value(link, ("context", "engine"), "other")
    assert link.is_symlink()
    assert (stat.S_IMODE(real.stat().st_mode), real.read_text()) == (
        0o640,
        "context:\n  engine: other\n",
    )


def test_the_file_keeps_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root must not take it from the account that Parley runs under."""
    path = tmp_path / "parley.yaml"
    path.write_text("")
    given_to: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "chown", lambda _, uid, gid: given_to.append((uid, gid)))
    set_value(path, ("context", "engine"), "rounds")
    assert given_to == [(os.getuid(), os.getgid())]


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """Here a file stands where a folder is needed."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be written"):
        set_value(tmp_path / "file" / "parley.yaml", ("context", "engine"), "rounds")


plain = st.text("abcxyz", min_size=1, max_size=6)
values = st.one_of(plain, st.integers(), st.lists(plain, max_size=2), st.none())
sections = st.dictionaries(plain, values, max_size=3)


@given(st.dictionaries(plain, st.one_of(values, sections), max_size=4), sections, st.booleans())
def test_every_other_value_stays(
    tree: dict[str, object], section: dict[str, object], flow: bool
) -> None:
    """Whatever stands in the file, in either style."""
    tree["context"] = section
    text = changed(yaml.safe_dump(tree, default_flow_style=flow), ("context", "engine"), "rounds")
    assert yaml.safe_load(text) == {**tree, "context": {**section, "engine": "rounds"}}


@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("model.api_key", "sk-right-key", 0o644, 0o600),
        ("model.api_keys", ["sk-right-key"], 0o664, 0o600),
        ("model", {"api_key": "sk-right-key"}, 0o644, 0o600),
        ("platforms.slack", [{"bot_token": "xoxb-1"}], 0o644, 0o600),
        ("tools.mcp.files.env", {"TOKEN": "secret"}, 0o644, 0o600),
        ("tools.mcp.files.env.TOKEN", "secret", 0o644, 0o600),
        ("model.api_key", "sk-right-key", 0o640, 0o640),
        ("model.api_key", "file:/run/key", 0o644, 0o644),
        ("model.api_key", None, 0o644, 0o644),
        ("model.name", "m", 0o644, 0o644),
    ],
)
def test_a_secret_closes_a_file_that_everybody_reads(
    tmp_path: Path, key: str, value: object, before: int, after: int
) -> None:
    """Only then, and whoever writes is told; a group that may read it was chosen by somebody."""
    path = tmp_path / "parley.yaml"
    path.write_text("queue: {mode: collect}\n")
    path.chmod(before)
    assert set_value(path, path_of(key), value) is (before != after)
    assert stat.S_IMODE(path.stat().st_mode) == after


def test_what_is_to_be_written_by_hand_is_told_without_secrets(tmp_path: Path) -> None:
    """Also where they stand inside of a list of accounts."""
    path = tmp_path / "parley.yaml"
    path.write_text("platforms: &all {}\nother: *all\n")
    with pytest.raises(SettingsError, match="by hand") as refused:
        set_value(path, ("platforms", "telegram"), [{"token": "12345:a-token"}])
    assert "a-token" not in str(refused.value)
