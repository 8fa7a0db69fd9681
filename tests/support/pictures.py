"""Small pictures of every kind that models look at, made from their formats' descriptions."""

import struct
import zlib


def png(width: int = 3, height: int = 2) -> bytes:
    """Return a whole PNG of one colour."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    rows = zlib.compress((b"\0" + b"\x80" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + head + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, body: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + body))
    return struct.pack(">I", len(body)) + kind + body + checksum


def gif(width: int = 3, height: int = 2) -> bytes:
    """Return the beginning of a GIF."""
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(8)


def jpeg(width: int = 3, height: int = 2, *, before: bytes = b"") -> bytes:
    """Return the beginning of a JPEG; `before` stands in front of its size, whole segments."""
    exif = b"\xff\xe1" + struct.pack(">H", 2 + 6) + b"Exif\0\0"
    size = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + bytes(10)
    return b"\xff\xd8" + exif + before + size


def webp(width: int = 3, height: int = 2, kind: bytes = b"VP8X") -> bytes:
    """Return the beginning of a WebP: VP8X (extended), VP8L (lossless) or "VP8 " (lossy)."""
    sizes = {
        b"VP8X": bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"),
        b"VP8L": b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14),
        b"VP8 ": b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height),
    }
    body = b"WEBP" + kind + bytes(4) + sizes.get(kind, bytes(20))
    return b"RIFF" + struct.pack("<I", len(body)) + body
