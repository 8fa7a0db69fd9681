"""A sink that keeps what a model showed."""


class CollectingSink:
    """Attributes: deltas, every piece since the last restart; restarts, how many there were."""

    def __init__(self) -> None:
        self.deltas: list[str] = []
        self.restarts = 0

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    def push(self, delta: str) -> None:
        self.deltas.append(delta)

    def restart(self) -> None:
        self.deltas.clear()
        self.restarts += 1
