"""Index from subjects to their owners: the streams of an account, the consumers of a work queue.

The subjects of all owners are one set, so that a new owner is compared with all others at the cost of its own subjects,
however many owners there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.server.engine import bounds
from slipstream.wire import SubjectSet


class SubjectIndex:
    """Subject filters and the names of their owners. A new claim must not overlap (`is_taken`); one that is there may:
    when a lost group takes changes back, streams are put right one after the other."""

    def __init__(self) -> None:
        self._subjects = SubjectSet()
        self._owners: dict[str, tuple[str, ...]] = {}

    def claim(self, owner: str, subjects: Sequence[str]) -> None:
        """The subjects belong to the owner from now on."""
        owners, only = self._owners, (owner,)
        for subject in subjects:
            if self._subjects.add(subject):
                owners[subject] = only
            elif owner not in owners[subject]:
                owners[subject] += only
        self._subjects.index_literals()  # here, so that no later request has to do it for all owners

    def release(self, owner: str, subjects: Sequence[str]) -> None:
        """The subjects belong to the owner no longer."""
        for subject in subjects:
            left = tuple(other for other in self._owners.pop(subject, ()) if other != owner)
            if left:
                self._owners[subject] = left
            else:
                self._subjects.discard(subject)

    def is_taken(self, what: str, subjects: Sequence[str], *, owner: str, own: Sequence[str] = ()) -> bool:
        """Whether one of the subjects overlaps those of another owner. `own` are those that the owner has now: they
        were compared before. Raises ApiError, about `what`, if it takes too much work to say."""
        wanted = dict.fromkeys(subjects)
        for subject in own:
            wanted.pop(subject, None)
        if not wanted:
            return False
        self.release(owner, own)
        try:
            start = self._subjects.steps
            for subject in wanted:
                if self._subjects.overlapping(subject) is not None:
                    return True
                bounds.check_steps(what, self._subjects.steps - start)
            return False
        finally:
            self.claim(owner, own)

    def owners_of(self, pattern: str) -> set[str]:
        """The owners of a subject that matches `pattern`."""
        return {owner for subject in self._subjects.all_overlapping(pattern) for owner in self._owners[subject]}
