"""The steps that the readers of all platforms share."""

from collections.abc import AsyncIterator

import orjson
import pytest
from pydantic import ValidationError

from adapters.errors import FetchRejected
from adapters.messages import (
    Text,
    WirePart,
    describe_flaw,
    file_kind,
    file_name,
    poison,
    quote,
    raw_json,
    read_within,
)


class Cup(WirePart):
    """Something decoded."""

    name: Text = "cup"
    size: int = 1


def test_null_is_as_good_as_missing() -> None:
    """A server may send either."""
    assert Cup.model_validate({"name": None, "size": 3}) == Cup(size=3)


def test_a_text_is_storable_and_as_long_as_before() -> None:
    """No database takes NUL or a lone surrogate; offsets into the text must hold."""
    assert Cup(name="a\x00b\ud83d").name == "a\ufffdb\ufffd"


def test_a_flaw_names_the_field_and_nothing_that_was_said() -> None:
    """It is logged."""
    with pytest.raises(ValidationError) as caught:
        Cup.model_validate({"size": "a secret"})
    assert describe_flaw(caught.value) == "size: Input should be a valid integer"


def test_any_update_can_be_kept() -> None:
    """Also one with a lone surrogate, which orjson would refuse."""
    with pytest.raises(TypeError):
        orjson.dumps("\ud83d")
    assert raw_json({"a": "\ud83d"}) == '{"a":"\\ud83d"}'


def test_the_same_bytes_have_the_same_key() -> None:
    """So that poison that comes again is known."""
    keys = [poison("bot", raw, "").dedupe_key for raw in ("x", "x", "y")]
    assert keys[0] == keys[1] != keys[2]
    assert poison("bot", "x", "", "u1").dedupe_key == "u1"


def test_a_long_quote_is_shortened() -> None:
    """To what reminds of it."""
    assert len(quote("x" * 900)) == 502
    assert quote(" a\nb ", "Ann") == "> Ann:\n> a\n> b"


@pytest.mark.parametrize(
    ("mime", "kind"),
    [("image/png", "image"), ("audio/ogg", "audio"), ("voice/x", "file"), ("", "file")],
)
def test_the_kind_of_a_file(mime: str, kind: str) -> None:
    """By its MIME type."""
    assert file_kind(mime) == kind


@pytest.mark.parametrize(
    ("name", "shown"),
    [("../a.txt", "a.txt"), ("c:\\x\\b.txt", "b.txt"), ("a/..", ""), ("a/", ""), ("", "")],
)
def test_a_file_name_is_no_path(name: str, shown: str) -> None:
    """Whatever a sender calls it, no folder is left."""
    assert file_name(name) == shown


async def test_a_file_is_read_up_to_the_limit() -> None:
    """One byte more, and no further chunk is taken."""
    taken: list[bytes] = []

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"ab", b"cd", b"ef"):
            taken.append(chunk)
            yield chunk

    assert await read_within(chunks(), 6) == b"abcdef"
    taken.clear()
    with pytest.raises(FetchRejected, match="larger than 3 bytes"):
        await read_within(chunks(), 3)
    assert taken == [b"ab", b"cd"]
