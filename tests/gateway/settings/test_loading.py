"""Two readers of settings: for those in use, and for foreign ones; more in test_tree."""

from pathlib import Path

import pytest

from gateway.errors import SettingsError
from gateway.settings.loading import read_foreign


def test_a_foreign_file_is_read_without_what_it_refers_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reference is resolved, no variable applies, and no provider's key completes a model."""
    monkeypatch.setenv("PARLEY_WEB__PORT", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef0123")
    file = tmp_path / "parley.yaml"
    file.write_text("model: {api_keys: ['command:touch here', 'env:K']}\n")
    found = read_foreign(file, tmp_path)
    assert [each.get_secret_value() for each in found.model.api_keys] == [
        "command:touch here",
        "env:K",
    ]
    assert (found.web.port, found.model.api_key) == (8765, None)


def test_a_foreign_file_with_a_mistake_is_refused(tmp_path: Path) -> None:
    """Each with the name of its key."""
    file = tmp_path / "parley.yaml"
    file.write_text("web: {port: none}\nnonsense: 1\n")
    with pytest.raises(SettingsError, match=r"nonsense: .*\n?.*web\.port|web\.port.*\n.*nonsense"):
        read_foreign(file, tmp_path)
