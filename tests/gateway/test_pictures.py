"""What a picture is, read from its first bytes."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pictures import look_at
from tests.support.pictures import gif, jpeg, png, webp

if TYPE_CHECKING:
    from collections.abc import Callable

MAKERS: "dict[str, Callable[[int, int], bytes]]" = {
    "image/png": png,
    "image/gif": gif,
    "image/jpeg": jpeg,
    "image/webp": webp,
}


@pytest.mark.parametrize("mime", MAKERS)
def test_type_and_size_are_read(mime: str) -> None:
    """Whatever the file is called."""
    assert look_at(MAKERS[mime](640, 480)) == (mime, 640, 480)


@pytest.mark.parametrize("kind", [b"VP8X", b"VP8L", b"VP8 "])
def test_each_kind_of_webp_is_read(kind: bytes) -> None:
    """Extended, lossless and lossy have their sizes in different places."""
    assert look_at(webp(1234, 567, kind)) == ("image/webp", 1234, 567)


def test_segments_before_the_size_of_a_jpeg_are_passed_over() -> None:
    """Fill bytes and markers without a length among them."""
    table = b"\xff\xc4\x00\x05abc"
    before = table + b"\xff\xff\xd8\xff\x01"
    assert look_at(jpeg(7, 5, before=before)) == ("image/jpeg", 7, 5)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"RIFF\0\0\0\0WAVEfmt ", webp(kind=b"XXXX"), b"\xff\xd8\xff\xd9x", b"%PDF-1.7"],
)
def test_anything_else_is_no_picture(content: bytes) -> None:
    """Nor is one whose size does not stand where it should."""
    assert look_at(content) is None


@pytest.mark.parametrize("make", [png, gif, jpeg, webp])
def test_a_picture_that_is_cut_off_is_none(make: "Callable[[], bytes]") -> None:
    """Before its size has come, nothing is known of it; afterwards the size is right."""
    whole = make()
    looks = [look_at(whole[:length]) for length in range(len(whole) + 1)]
    known = [look for look in looks if look is not None]
    assert looks == [None] * (len(looks) - len(known)) + known
    assert {(look.width, look.height) for look in known} == {(3, 2)}


@given(st.sampled_from([b"\xff\xd8", b"RIFF....WEBPVP8 ", b"GIF89a", b""]), st.binary(max_size=60))
def test_no_content_breaks_it(beginning: bytes, rest: bytes) -> None:
    """What strangers send is read without an exception."""
    found = look_at(beginning + rest)
    assert found is None or found.mime in MAKERS
