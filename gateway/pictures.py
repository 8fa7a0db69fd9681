"""What a picture is, read from its first bytes: models refuse one that is not what it is called."""

import struct
from typing import NamedTuple

MAX_IMAGE_BYTES = 3_932_160
"""Three quarters of 5 MiB. Source: Anthropic's API, "image exceeds 5 MB maximum: … bytes > 5242880
bytes", where it counts the characters of the base64 form."""
MAX_SIDE_PIXELS = 8000
"""Source: Anthropic's vision guide, "larger than 8000x8000 px … will be rejected"."""

_SIZED_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Markers of a JPEG that are followed by its size. Source: ITU-T T.81, table B.1."""
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})


class Picture(NamedTuple):
    """Media type and size of a picture, in pixels."""

    mime: str
    width: int
    height: int


def look_at(content: bytes) -> Picture | None:
    """Return what a file is, by its beginning; None for anything but PNG, JPEG, GIF and WebP.

    None, too, where the size does not stand in what is given.
    """
    try:
        if content.startswith(b"\x89PNG\r\n\x1a\n"):
            return Picture("image/png", *struct.unpack_from(">II", content, 16))
        if content.startswith((b"GIF87a", b"GIF89a")):
            return Picture("image/gif", *struct.unpack_from("<HH", content, 6))
        if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
            return _webp(content)
        return _jpeg(content) if content.startswith(b"\xff\xd8") else None
    except (struct.error, IndexError):
        return None


def _webp(content: bytes) -> Picture | None:
    """Source: RFC 9649, sections 2.5 to 2.7."""
    match content[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", content, 26)
            return Picture("image/webp", width & 0x3FFF, height & 0x3FFF)
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", content, 21)
            return Picture("image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8X":
            width, height = content[24:27], content[27:30]
            sides = (1 + int.from_bytes(side, "little") for side in (width, height))
            return Picture("image/webp", *sides) if len(height) == 3 else None
    return None


def _jpeg(content: bytes) -> Picture | None:
    """Go from marker to marker until the one with the size."""
    at = 2
    while content[at] == 0xFF:
        marker = content[at + 1]
        if marker in _SIZED_FRAMES:
            height, width = struct.unpack_from(">HH", content, at + 5)
            return Picture("image/jpeg", width, height)
        if marker == 0xFF:
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        else:
            (length,) = struct.unpack_from(">H", content, at + 2)
            at += 2 + length
    return None
