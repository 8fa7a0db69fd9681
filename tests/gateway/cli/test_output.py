"""Where commands print to."""

import pytest

from gateway.cli import output


@pytest.mark.parametrize("name", ["out", "err"])
def test_names_of_emoji_are_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever prints, and however: `a:100:b` is no picture."""
    getattr(output, name).print("a:100:b")
    assert getattr(capsys.readouterr(), name) == "a:100:b\n"
