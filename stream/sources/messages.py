"""Blocks of messages in order of arrival, which every source gives to delivery."""

from dataclasses import dataclass

from dpcore.arrays import IntArray


@dataclass(frozen=True)
class Messages:
    """A block of messages. ``due``: when each reaches the broker at recorded pace, µs UTC. The key is the vehicle.

    ``unread`` messages are not events of the format. They are passed on, so that the service refuses, counts and
    reports them; they have no key and are due together with the message before. An empty block: the source is silent at
    present.
    """

    due: IntArray
    keys: list[bytes | None]
    values: list[bytes]
    unread: int = 0

    def part(self, start: int, stop: int) -> "Messages":
        """Messages ``start`` to ``stop - 1``; ``unread`` is counted with the first message of a block."""
        return Messages(
            self.due[start:stop], self.keys[start:stop], self.values[start:stop], self.unread if start == 0 else 0
        )
