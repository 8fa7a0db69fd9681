"""Where the real conversations lie that tests read; None where this checkout stands alone."""

from pathlib import Path

_DATA = (Path(__file__).resolve().parents[2] / ".." / "shared" / "data").resolve()
SHARED: Path | None = _DATA if _DATA.is_dir() else None
