"""`parley` where the folder `toy` stands among those in `adapters/`."""

from importlib import import_module
from pathlib import Path

import adapters

adapters.__path__.append(str(Path(__file__).parent))
# Not before: the settings are made from the register when they are imported.
import_module("gateway.cli.main").main()
