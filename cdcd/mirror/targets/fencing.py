"""One writer for each table: whoever finds commits of another process ends.

The rule: each commit is stamped with the process that made it. Before and after a commit, a process looks at the newest
commits. It must know all of them: they are its own, or were there when it first looked at the table. Two processes that
mirror into one table find each other's commits, so at least the later one ends, by name, with its next commit.

Two processes may commit at the same moment, before either finds the commit of the other. So the state of each commit
has the stamp of the commit before it (`State.made_on`). If a commit follows another commit than that, it is misplaced.
The next process to mirror a changelog finds misplaced commits and takes them back.
"""

from collections.abc import Collection
from typing import Final, NamedTuple
from uuid import uuid4

from cdcd.core.errors import FencedError

NEWEST: Final = 2
"""Number of commits that are looked at. One of ours may lie on one that another process made at the same time."""


class Stamp(NamedTuple):
    """Who made a commit, and the number of the commit among those of that process."""

    writer: str = ""
    number: int = 0


NOBODY: Final = Stamp()
"""The stamp of a commit from before there were stamps."""


class Fence:
    """The commits that a process knows, by the name of the table."""

    def __init__(self) -> None:
        self._writer = uuid4().hex
        self._number = 0
        self._known: dict[str, frozenset[Stamp]] = {}

    def next(self) -> Stamp:
        """The stamp of the next commit."""
        self._number += 1
        return Stamp(self._writer, self._number)

    def learn(self, name: str, stamps: Collection[Stamp]) -> None:
        """Add commits to those that are known of the table."""
        self._known[name] = self._known.get(name, frozenset()) | frozenset(stamps)

    def check(self, name: str, newest: Collection[Stamp]) -> None:
        """That the newest commits of the table are known. The first time, they become known.

        Raises:
            FencedError: another process made one of them.
        """
        known = self._known.setdefault(name, frozenset(newest))
        if any(stamp.writer != self._writer and stamp not in known for stamp in newest):
            raise FencedError(
                f"Another process mirrors into {name}: the table has a commit that this process did not make.",
                hint="Let only one process mirror into a table, then start that process again.",
            )
