"""Tracks changes in the stream that matter for rows which are read beside the stream.

Two things are remembered of a table's changes (`snapshot/placement.py`): in a `Window`, which keys were changed
while chunks are read, and in `Owed`, which rows must be read again because a change left a value out (unchanged
TOAST).

The rule: a table that is being read has a window as long as its plan exists. A table of which rows were delivered
owes rows until its task ends, even while it waits or is paused. Both are found by the table's own topic, because a
record identifies its table by the topic. If rows are routed, each topic of the table is mapped to its own topic. So
a row that goes to another topic counts as changed like any other, and its key is the same in all topics.
"""

from collections.abc import Iterable, Sequence

from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.snapshot.placement import Owed, Window
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Visibility
from cdcd.core.snapshot.table_task import Key, TableTask


class WatchedTables:
    """Windows and owed rows by topic; `note`, `truncated` and `defined` must be called in the order of the stream."""

    def __init__(self, tasks: SnapshotTasks) -> None:
        self._tasks = tasks
        self._windows: dict[str, Window] = {}
        self._owed: dict[int, Owed] = {}
        """The owed rows by the number of the task."""
        self._owed_of: dict[str, list[int]] = {}
        """Numbers of tasks that owe rows of a topic, by topic."""
        self._topics: dict[int, str] = {}
        """The topic of each relation that the stream or a look-up has described, by oid."""
        self._own: dict[str, str] = {}
        """The table's own topic, by each further topic of a table whose rows are routed."""

    # The stream.

    @property
    def watches(self) -> bool:
        """True if any change matters; if none does, `note` need not be called."""
        return bool(self._windows or self._owed)

    def is_watched(self, topic: str) -> bool:
        """Return whether changes of this topic's table matter."""
        topic = self._own.get(topic, topic)
        return topic in self._windows or topic in self._owed_of

    def note(
        self,
        xid: int,
        topic: str,
        key: bytes | None,
        values: Key | None,
        *,
        moved: bool,
        secret: bool = False,
    ) -> None:
        """Note that the committed transaction `xid` made a record with this key.

        The other arguments are as in `Owed.note`.
        """
        topic = self._own.get(topic, topic)
        window = self._windows.get(topic)
        if window is not None:
            window.note(xid, key)
        numbers = self._owed_of.get(topic)
        if numbers is not None and key is not None:
            for number in numbers:
                self._owed[number].note(key, values, moved=moved, secret=secret)

    def truncated(self, xid: int, oids: Iterable[int]) -> None:
        """Note that the committed transaction `xid` emptied these tables."""
        for oid in oids:
            topic = self._topics.get(oid, "")
            if topic in self._windows:
                self._windows[topic].note(xid, None)
            for number in self._owed_of.get(topic, ()):
                self._owed[number].truncated()

    def defined(self, oid: int, topics: Sequence[str]) -> None:
        """Note that changes of these topics, of which the first is its own, belong to this table."""
        topic = topics[0]
        for each in topics[1:]:
            self._own[each] = topic
        if self._topics.get(oid) != topic:
            self._topics[oid] = topic
            self._index()

    # What is read.

    def has_window(self, topic: str) -> bool:
        """Return whether a table is being read into this topic."""
        return topic in self._windows

    def open_window(self, oid: int, topic: str) -> Window:
        """Track the changes of this table's rows from now on, until `close_window`."""
        self._topics[oid] = topic
        window = self._windows[topic] = Window()
        self._index()
        return window

    def close_window(self, topic: str) -> None:
        """Forget the window of this topic, if there is one."""
        self._windows.pop(topic, None)

    def owed(self, task: TableTask) -> Owed | None:
        """Return the rows that the task owes; None if no row of it was delivered yet."""
        return self._owed.get(task.number)

    def watch_owed(self, task: TableTask) -> None:
        """Track from now on which rows the table, which has a window, owes."""
        self._owed.setdefault(task.number, Owed())
        self._index()

    def forget_seen(self, task: TableTask, window: Window | None, seen: Visibility | None) -> None:
        """Forget changes before `seen`, because no row of the task was read yet, and all rows will be read at `seen` or
        later.
        """
        owed = self._owed.get(task.number)
        if owed is None or window is None or seen is None or self._has_begun(task):
            return
        overtaken = window.overtaken(seen)
        if overtaken is not None:
            owed.begin(overtaken)

    def forget_unread(self, task: TableTask) -> None:
        """Note that the plan has ended: the task owes nothing if no row of it was delivered."""
        if not self._has_begun(task):
            self.forget_owed(task)

    def _has_begun(self, task: TableTask) -> bool:
        current = self._tasks.find(task.number)
        return current is not None and current.has_begun

    def resume_owed(self, task: TableTask) -> None:
        """Take over the owed rows of a table whose rows an earlier session has delivered in part."""
        self._owed[task.number] = Owed(task.owed)

    def forget_owed(self, task: TableTask) -> None:
        """Forget what the task owes, because it has ended or is read from its beginning.

        The progress says so already.
        """
        if self._owed.pop(task.number, None) is not None:
            self._index()

    def write_down(self) -> Progress | None:
        """Return the progress for the checkpoint, with the owed rows; None if no snapshot was ever requested."""
        progress = self._tasks.progress
        for number, owed in self._owed.items():
            task = self._tasks.find(number)
            if task is not None:
                progress = progress.owe(task, owed.to_write_down())
        self._tasks.progress = progress
        return None if progress == Progress() else progress

    def _index(self) -> None:
        """Rebuild the index of tasks that owe rows, by topic. A table without a topic has had no change yet."""
        self._owed_of.clear()
        for task in self._tasks.progress.tasks:
            if task.number not in self._owed and task.has_begun and not task.ended:
                # The initial snapshot has read only a part of the table.
                self.resume_owed(task)
            topic = self._topics.get(task.oid)
            if topic is not None and task.number in self._owed:
                self._owed_of.setdefault(topic, []).append(task.number)
