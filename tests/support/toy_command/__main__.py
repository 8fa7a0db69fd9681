"""`parley` where the file `roll.py` stands among those in `gateway/commands/`."""

from importlib import import_module
from pathlib import Path

import gateway.commands

gateway.commands.__path__.append(str(Path(__file__).parent / "commands"))
import_module("gateway.cli.main").main()
