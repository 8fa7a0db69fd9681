"""Parley for `../shared/peerbench` with the strategy of its prompt cache that is the default."""

import ours


class Adapter(ours.Adapter):
    """Marks the system prompt and the last three other messages."""

    strategy = "system_and_3"
