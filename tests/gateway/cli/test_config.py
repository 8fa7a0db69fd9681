"""`parley config show`: values, origins, and no secret in sight."""

import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from gateway.cli.config import as_data, rows, show
from gateway.settings.loading import Loaded, load_settings
from tests.support.command_line import Run as Parley

YAML = """
model: {api_keys: [hunter21, hunter22]}
fallbacks: [{provider: openai, name: m, retry_for_s: 7}]
web: {token: hunter23-abcdefghij}
platforms: {telegram: [{token: hunter24}, {name: b}]}
access: {telegram: [1], groups: {"telegram:-1": {respond: always}}}
tools: {mcp: {files: {url: 'http://me:hunter25@host/'}}}
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    """Settings with secrets in every kind of place."""
    (tmp_path / "parley.yaml").write_text(YAML)
    return load_settings(environ={"PARLEY_HOME": str(tmp_path), "PARLEY_WEB__PORT": "1"})


def test_every_key_has_a_row_in_the_order_of_the_tree(loaded: Loaded) -> None:
    """Home first, logging last."""
    keys = [row.key for row in rows(loaded)]
    assert keys == list(loaded.values)
    assert (keys[0], keys[-1]) == ("home", "logging.file")


def test_a_row_has_value_origin_and_mark(loaded: Loaded, tmp_path: Path) -> None:
    """Values are JSON data."""
    found = {row.key: row[1:] for row in rows(loaded)}
    assert found["home"] == (str(tmp_path), "PARLEY_HOME", "restart")
    assert found["web.port"] == (1, "PARLEY_WEB__PORT", "restart")
    assert found["access.telegram"] == (["1"], "parley.yaml", "live")
    rule = {"respond": "always", "context": False, "senders": "allowed"}
    assert found["access.groups"] == ({"telegram:-1": rule}, "parley.yaml", "live")
    assert found["queue.mode"] == ("collect", "default", "live")
    assert found["platforms.telegram.1.name"] == ("b", "parley.yaml", "restart")


def test_secrets_are_masked_and_their_absence_is_shown(loaded: Loaded) -> None:
    """Not even the end of a key is printed."""
    found = {row.key: row.value for row in rows(loaded)}
    assert found["web.token"] == "********"
    assert found["model.api_keys"] == ["********"] * 2
    assert found["platforms.telegram.1.token"] is None
    assert "hunter2" not in str(as_data(loaded))


def test_json_maps_keys_to_value_origin_and_mark(loaded: Loaded) -> None:
    """For scripts."""
    assert as_data(loaded)["web.port"] == {
        "value": 1,
        "origin": "PARLEY_WEB__PORT",
        "mark": "restart",
    }


def test_the_list_has_one_line_for_each_key_and_warning(loaded: Loaded) -> None:
    """Lines are not wrapped, so that they can be searched."""
    out = io.StringIO()
    show(loaded, Console(file=out, width=20))
    lines = out.getvalue().splitlines()
    assert len(lines) == len(loaded.values) + len(loaded.warnings)
    assert next(line for line in lines if line.startswith("web.port")).split() == [
        "web.port",
        "1",
        "restart",
        "PARLEY_WEB__PORT",
    ]
    warning = "fallbacks.0.retry_for_s is set, but has no effect: that of `model` holds for all"
    assert f"warning: {warning}" in lines
    assert "hunter2" not in out.getvalue()


def test_it_says_which_sandbox_holds(parley: Parley, tmp_path: Path) -> None:
    """Where commands are confined; the JSON holds settings alone."""
    tools = {"enabled": ["terminal"], "sandbox": {"backend": "none"}}
    (tmp_path / "parley.yaml").write_text(yaml.safe_dump({"tools": tools}))
    line = "sandbox: no sandbox: tools.sandbox.backend is none"
    assert line in parley("config", "show").out
    assert line not in parley("config", "show", "--json").out


def test_a_reference_is_shown_and_not_what_it_stands_for(tmp_path: Path) -> None:
    """In a value, a list and a map."""
    (tmp_path / "key").write_text("hunter26")
    (tmp_path / "key").chmod(0o600)
    reference = f"file:{tmp_path}/key"
    (tmp_path / "parley.yaml").write_text(f"""
model: {{api_keys: ["{reference}"]}}
tools: {{mcp: {{files: {{command: files, env: {{TOKEN: "{reference}", PLAIN: hunter27}}}}}}}}
""")
    loaded = load_settings(environ={"PARLEY_HOME": str(tmp_path)})
    found = {row.key: row.value for row in rows(loaded)}
    assert found["model.api_keys"] == [reference]
    assert found["tools.mcp"]["files"]["env"] == {"TOKEN": reference, "PLAIN": "********"}
    assert "hunter2" not in str(as_data(loaded))


def test_the_address_of_a_server_is_shown_without_its_passwords(tmp_path: Path) -> None:
    """Its host is what one looks for; one that is referred to is shown as that."""
    url = "postgresql://ann:hunter21@db:5432/parley?sslmode=require&sslpassword=hunter22&password=h"
    (tmp_path / "parley.yaml").write_text(
        f"storage: {{url: '{url}', direct_url: 'env:DIRECT', pooled: true}}"
    )
    environ = {"PARLEY_HOME": str(tmp_path), "DIRECT": "postgresql://ann:hunter23@db/parley"}
    found = {row.key: row.value for row in rows(load_settings(environ=environ))}
    assert found["storage.url"] == (
        "postgresql://********@db:5432/parley?sslmode=require&sslpassword=********&password=********"
    )
    assert found["storage.direct_url"] == "env:DIRECT"


def test_secrets_are_reloaded_by_a_gateway(tmp_path: Path, parley: Parley) -> None:
    """Where none runs one line says so, whatever the settings refer to."""
    (tmp_path / "parley.yaml").write_text('model: {api_key: "file:/no/such/file"}')
    result = parley("secrets", "reload")
    assert (result.code, result.out) == (1, "")
    assert f"no gateway runs in {tmp_path}" in result.err
