"""Memory of connections: the bytes that wait for all clients together, held against a budget of the whole server.

What waits
==========

- **Output** that clients have not read: in the buffers of their transports, and for a moment in `Session.out`, which
  the driver hands over once per turn, or as soon as much is queued (`core.output`).
- **Input** that is not carried out yet: incomplete frames, and bytes that were read while a client was paused.
- **Requests**: open atomic batches and parked reads. The engine counts and bounds them; they leave less for the others.

When the sum exceeds the budget, no client is read from until the next turn. Then the sum is measured exactly, and the
clients that hold most are disconnected until it is below `LOW` of the budget. A turn comes after the loop has offered
all output to the kernel, so a client that reads is not the one that holds most. Memory is bounded by the budget, and by
what one slice of one client's input causes.

Large frames that arrive in pieces take turns (`FrameSlots`): publishers of large messages wait for each other instead
of being disconnected. Freed buffers go back to the operating system (`give_back`): glibc would keep most of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Hashable
from functools import cache
from typing import Generic, Protocol, TypeVar

LOW = 7 / 8  # of the budget: what is left after clients were disconnected
LARGE = 64 * 1024  # bytes of an incomplete frame that need a slot
FRAME_SHARE = 4  # a quarter of the budget is for large incomplete frames
FRAME_TIME = 10.0  # seconds for one to arrive while others wait for its slot
RELEASED = 4 * 1024 * 1024  # bytes, of all connections that were lost, whose release is worth a `give_back`


class Holder(Hashable, Protocol):
    """A connection, as it is counted here."""

    unsent: int  # bytes of output, when it was last written to
    held: int  # bytes of input, when it was last read from

    def measure(self) -> None:
        """Bring both up to date."""

    def wait_for_slot(self, yes: bool) -> None:
        """Read nothing more until there is a slot for its frame (or go on)."""


_H = TypeVar("_H", bound=Holder)


class PendingBytes:
    """The bytes that wait for all clients. `total` is exact after `measure`, and never too low between."""

    def __init__(self, limit: int, elsewhere: Callable[[], int]) -> None:
        """`limit` below 0 is none; `elsewhere`: bytes that no connection holds but that count as well."""
        self.limit = limit
        self._elsewhere = elsewhere
        self._held = 0
        self.peak: int = 0
        self.cut_off: int = 0  # connections

    @property
    def total(self) -> int:
        return self._held + self._elsewhere()

    @property
    def is_over(self) -> bool:
        """Whether the budget may be exceeded; `excess` finds out."""
        return 0 <= self.limit < self._held + self._elsewhere()

    def wrote(self, holder: Holder, unsent: int) -> None:
        """A connection was written to."""
        self._held += unsent - holder.unsent
        holder.unsent = unsent

    def read(self, holder: Holder, held: int) -> None:
        """A connection was read from."""
        self._held += held - holder.held
        holder.held = held

    def forget(self, holder: Holder) -> int:
        """A connection is gone; returns what it held."""
        size = _size(holder)
        self._held -= size
        holder.unsent = holder.held = 0
        return size

    def measure(self, holders: Collection[Holder]) -> int:
        """Measure all connections; returns the total."""
        for holder in holders:
            holder.measure()
        self._held = sum(map(_size, holders))
        self.peak = max(self.peak, self.total)
        return self.total

    def excess(self, holders: Collection[_H]) -> list[_H]:
        """The connections to disconnect, those that hold most first; none if the measured total is in the budget."""
        total = self.measure(holders)
        if self.limit < 0 or total <= self.limit:
            return []
        found: list[_H] = []
        for holder in sorted(holders, key=_size, reverse=True):
            if total <= self.limit * LOW or not _size(holder):
                break
            total -= _size(holder)
            found.append(holder)
        self.cut_off += len(found)
        return found


def _size(holder: Holder) -> int:
    return holder.unsent + holder.held


class FrameSlots(Generic[_H]):
    """The connections that may send a large frame: as many at a time as a share of the budget has space for."""

    def __init__(self, limit: int, max_payload: int) -> None:
        """`limit` is the budget; below 0 there is none, and all may."""
        self._slots = 0
        self.resize(limit, max_payload)
        self._owners: dict[_H, float] = {}  # since when
        self._waiting: dict[_H, None] = {}  # in order

    def resize(self, limit: int, max_payload: int) -> None:
        """Change the number of slots; those that have one keep it."""
        self._slots = max(1, limit // FRAME_SHARE // max_payload) if limit >= 0 else 0

    def __contains__(self, holder: object) -> bool:
        return holder in self._owners

    @property
    def is_wanted(self) -> bool:
        """Whether a connection waits for a slot."""
        return bool(self._waiting)

    def update(self, holder: _H, incomplete: int, now: float) -> None:
        """A connection has sent some of a frame, of which `incomplete` bytes are held now."""
        if incomplete <= LARGE or not self._slots:
            self.release(holder, now)
        elif holder not in self._owners and holder not in self._waiting:
            if len(self._owners) < self._slots:
                self._owners[holder] = now
            else:
                self._waiting[holder] = None
                holder.wait_for_slot(True)

    def release(self, holder: _H, now: float) -> None:
        """A connection's frame is complete, or the connection is gone: the next one may go on."""
        self._waiting.pop(holder, None)
        if self._owners.pop(holder, None) is not None and self._waiting:
            first = next(iter(self._waiting))
            del self._waiting[first]
            self._owners[first] = now
            first.wait_for_slot(False)

    def overdue(self, now: float) -> list[_H]:
        """The connections that have had their slot for too long, while others wait."""
        return [one for one, since in self._owners.items() if now - since >= FRAME_TIME] if self._waiting else []


@cache
def _malloc_trim() -> Callable[[int], object] | None:
    """glibc's; None elsewhere."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes, found.restype = (ctypes.c_size_t,), ctypes.c_int
    return found


def give_back() -> None:
    """Return freed memory to the operating system. It takes milliseconds, without the interpreter's lock."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)
