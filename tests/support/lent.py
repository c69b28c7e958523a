"""A fork server that outlives whatever uses it."""

from marlcore.processes import ForkServer


class Lent:
    """What runs and groups of workers see of a server that its owner closes."""

    def __init__(self, server: ForkServer) -> None:
        self.fork = server.fork

    def close(self) -> None:
        """Leaves it open."""
