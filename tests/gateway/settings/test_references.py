"""Secrets that the settings refer to: every way to keep one, what goes wrong, and what is told."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked
from typing_extensions import override

from agent.errors import SecretUnreadable
from agent.settings import ReferencedSecret
from gateway.settings import references
from gateway.settings.loading import redactor_of, secret_values
from gateway.settings.references import MOST_BYTES, read_secret, references_in
from tests.gateway.settings.test_tree import load, problems

VALUE = "s3cret-value-of-nobody"
PYTHON = shlex.quote(sys.executable)


class Ring(KeyringBackend):
    """A keyring with one entry, as a desktop offers it; `failure` is what it raises instead."""

    priority = 1  # type: ignore[assignment] - as the library's own backends set it
    failure: type[Exception] | None = None

    @override
    def get_password(self, service: str, username: str) -> str | None:
        if self.failure is not None:
            raise self.failure(f"closed over {VALUE}")
        return VALUE if (service, username) == ("parley", "openai/main") else None

    @override
    def set_password(self, service: str, username: str, password: str) -> None:
        raise AssertionError("Parley only reads")


@pytest.fixture
def ring() -> Iterator[Ring]:
    """The keyring of this system, for one test."""
    before, ring = keyring.get_keyring(), Ring()
    keyring.set_keyring(ring)
    yield ring
    keyring.set_keyring(before)


def key_file(tmp_path: Path, content: str = f"{VALUE}\n") -> Path:
    """Return a file with a secret, for its owner alone."""
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    return path


class TestRead:
    def test_a_file_without_the_newline_at_its_end(self, tmp_path: Path) -> None:
        """What stands before it belongs to the secret."""
        path = key_file(tmp_path, " a b \r\n\n")
        assert read_secret(f"file:{path}", {}) == " a b "

    def test_a_variable(self) -> None:
        """Of the environment that the settings are read with."""
        assert read_secret("env:MY_KEY", {"MY_KEY": VALUE}) == VALUE

    def test_a_credential_of_systemd(self, tmp_path: Path) -> None:
        """By its name in the directory that systemd names."""
        key_file(tmp_path)
        assert read_secret("credential:key", {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == VALUE

    def test_a_keyring(self, ring: Ring) -> None:
        """The service ends at the first slash."""
        assert ring.failure is None
        assert read_secret("keyring:parley/openai/main", {}) == VALUE

    def test_a_command_without_a_shell(self) -> None:
        """Its words are split as a shell would, and nothing else is done to them."""
        line = f"""{PYTHON} -c 'import sys; print(sys.argv[1])' '$HOME;"{VALUE}"'"""
        assert read_secret(f"command:{line}", {}) == f'$HOME;"{VALUE}"'

    @pytest.mark.parametrize(
        ("reference", "why"),
        [
            ("file:/no/such/file", "cannot be read: No such file or directory"),
            ("file:/", "is not a file"),
            ("file:~nobody-at-all/key", "names a user that does not exist"),
            ("env:MY_KEY", "is not set"),
            ("env:EMPTY", "is empty"),
            ("credential:key", "systemd hands over nothing here (CREDENTIALS_DIRECTORY)"),
            ("keyring:parley", "must be keyring:SERVICE/NAME"),
            ("command:", "names no program"),
            ("command:'", "is not a command: No closing quotation"),
            ("command:/no/such/program", "cannot be run: No such file or directory"),
            (f"command:{PYTHON} -c 'print(1); exit(3)'", "failed with exit code 3"),
        ],
    )
    def test_what_cannot_be_read(self, reference: str, why: str) -> None:
        """The reason is told, and what to do where that is not plain."""
        with pytest.raises(SecretUnreadable) as caught:
            read_secret(reference, {"EMPTY": " \n"})
        assert why in str(caught.value)

    @pytest.mark.parametrize("name", ["..", ".", "", "a/b"])
    def test_a_credential_is_a_name(self, tmp_path: Path, name: str) -> None:
        """No path leads out of the directory."""
        with pytest.raises(SecretUnreadable, match="not the name of a credential"):
            read_secret(f"credential:{name}", {"CREDENTIALS_DIRECTORY": str(tmp_path)})

    def test_a_file_that_is_no_text_or_too_large(self, tmp_path: Path) -> None:
        """It is not a secret but a mistake; nothing of it is told."""
        path = key_file(tmp_path)
        path.write_bytes(b"\xff" + VALUE.encode())
        with pytest.raises(SecretUnreadable, match=r"^is not UTF-8 text$") as caught:
            read_secret(f"file:{path}", {})
        assert caught.value.__cause__ is None
        path.write_text("x" * (MOST_BYTES + 1))
        with pytest.raises(SecretUnreadable, match="more than 65,536 bytes"):
            read_secret(f"file:{path}", {})

    @pytest.mark.parametrize("failure", [KeyringLocked, RuntimeError])
    def test_a_keyring_without_the_entry_or_that_fails(
        self, ring: Ring, failure: type[Exception]
    ) -> None:
        """By errors of its own as well; its words are not told: they may hold anything."""
        with pytest.raises(SecretUnreadable, match="is not in the keyring"):
            read_secret("keyring:parley/other", {})
        ring.failure = failure
        with pytest.raises(SecretUnreadable, match=r"^cannot be read: an unexpected error$"):
            read_secret("keyring:parley/other", {})

    def test_a_system_without_a_keyring(self) -> None:
        """As a server has none."""
        before = keyring.get_keyring()
        keyring.set_keyring(keyring.backends.fail.Keyring())  # type: ignore[no-untyped-call]
        try:
            with pytest.raises(SecretUnreadable, match="no keyring on this system"):
                read_secret("keyring:parley/key", {})
        finally:
            keyring.set_keyring(before)

    def test_without_the_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The extra is named."""
        monkeypatch.setitem(sys.modules, "keyring", None)
        with pytest.raises(SecretUnreadable, match=r"pip install 'parley\[keyring\]'"):
            read_secret("keyring:parley/key", {})

    @pytest.mark.thorough
    def test_a_command_that_never_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is killed with all that it has started, and what it wrote is not told."""
        monkeypatch.setattr(references, "COMMAND_TIMEOUT_S", 1.0)
        code = f"import os, time; os.fork(); print('{VALUE}', flush=True); time.sleep(600)"
        with pytest.raises(SecretUnreadable, match=r"^took longer than 1 s$") as caught:
            read_secret(f"command:{PYTHON} -c {shlex.quote(code)}", {})
        assert caught.value.__cause__ is None


class TestSettings:
    def test_every_secret_may_be_a_reference(self, tmp_path: Path) -> None:
        """A value, one of a list, one of a map, one in a plugin's options."""
        reference = f"file:{key_file(tmp_path)}"
        yaml = f"""
model: {{provider: openai, api_keys: ["{reference}"]}}
platforms: {{telegram: {{token: "{reference}"}}}}
tools: {{mcp: {{notes: {{command: notes, env: {{TOKEN: "{reference}", PLAIN: word}}}}}}}}
plugins: {{options: {{weather: {{api_key: "{reference}", place: "{reference}"}}}}}}
"""
        settings = load(tmp_path, yaml).settings
        assert [path[-1] for path, _ in references_in(settings)] == [
            *("api_key", 0, "TOKEN", "api_key", "token")
        ]
        assert {each.get_secret_value() for _, each in references_in(settings)} == {VALUE}
        assert settings.plugins.options_of("weather") == {"api_key": VALUE, "place": reference}
        assert set(secret_values(settings)) == {VALUE}

    def test_a_key_of_its_providers_variable_may_be_one(self, tmp_path: Path) -> None:
        """`ANTHROPIC_API_KEY=file:…`."""
        env = {"ANTHROPIC_API_KEY": f"file:{key_file(tmp_path)}"}
        key = load(tmp_path, env=env).settings.model.api_key
        assert isinstance(key, ReferencedSecret)
        assert key.get_secret_value() == VALUE

    def test_a_file_named_by_a_variable_is_one(self, tmp_path: Path) -> None:
        """`…__TOKEN_FILE` is read again as well."""
        path = key_file(tmp_path)
        loaded = load(tmp_path, env={"PARLEY_MODEL__API_KEY_FILE": str(path)})
        key = loaded.settings.model.api_key
        assert isinstance(key, ReferencedSecret)
        assert key.reference == f"file:{path}"

    def test_the_error_names_setting_reference_and_place_but_no_value(self, tmp_path: Path) -> None:
        """Of a command only its program: arguments may be secrets."""
        code = shlex.quote(f"print('{VALUE}'); exit(4)")
        yaml = f"""
model: {{api_key: "env:GONE"}}
web: {{token: {quoted(f"command:{PYTHON} -c {code} {VALUE}")}}}
"""
        found = problems(tmp_path, yaml)
        assert found == [
            "model.api_key: env:GONE is not set (parley.yaml)",
            f"web.token: command:{sys.executable} … failed with exit code 4 (parley.yaml)",
        ]

    def test_a_file_that_others_can_read_is_warned_of(self, tmp_path: Path) -> None:
        """With what to do about it."""
        path = key_file(tmp_path)
        yaml = f'model: {{provider: openai, api_key: "file:{path}"}}'
        assert load(tmp_path, yaml).warnings == ()
        path.chmod(0o644)
        assert load(tmp_path, yaml).warnings == (
            f"model.api_key: {path} can be read by every user of this machine; chmod 600 it",
        )

    def test_a_value_that_is_read_later_is_masked_before_it_is_used(self, tmp_path: Path) -> None:
        """By everybody who masks the settings' secrets; the one before still is."""
        path = key_file(tmp_path)
        settings = load(tmp_path, f'model: {{provider: openai, api_key: "file:{path}"}}').settings
        redactor = redactor_of(settings)
        [(_, key)] = references_in(settings)
        assert not key.take(key.read())
        path.write_text("another-key-9")
        assert key.take(key.read())
        assert key.get_secret_value() == "another-key-9"
        assert redactor.configured(f"{VALUE} another-key-9") == "******** ********"
        path.unlink()
        with pytest.raises(SecretUnreadable):
            key.take(key.read())
        assert key.get_secret_value() == "another-key-9"


def quoted(text: str) -> str:
    """Return a text as YAML takes it in double quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
