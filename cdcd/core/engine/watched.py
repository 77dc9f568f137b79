"""Changes in the stream that matter to rows which are read beside it.

Two things are remembered of a table's changes (`snapshot/placement.py`): in a `Window`, which keys were changed while
chunks are read, and in `Owed`, which rows must be read again because a change left a value out (unchanged TOAST).

The rule: a table that is being read has a window as long as its plan lasts. A table of which rows were delivered owes
rows until its task ends, also while it waits or is paused. Both are found by the table's own topic, because that is
what a record says of its table. Where rows are routed, each of the table's topics leads to its own one. So a row that
goes to another topic counts as changed like any other, and its key is the same in all of them.
"""

from collections.abc import Iterable, Sequence

from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.snapshot.placement import Owed, Window
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.table_task import Key, TableTask
from cdcd.core.snapshot.visibility import Visibility


class WatchedTables:
    """Windows and owed rows by topic. Call `note`, `truncated` and `defined` in the order of the stream."""

    def __init__(self, tasks: SnapshotTasks) -> None:
        self._tasks = tasks
        self._windows: dict[str, Window] = {}
        self._owed: dict[int, Owed] = {}
        """By the number of the task."""
        self._owed_of: dict[str, list[int]] = {}
        """By topic: numbers of tasks that owe rows of it."""
        self._topics: dict[int, str] = {}
        """By oid, of the relations that the stream or a look-up has described."""
        self._own: dict[str, str] = {}
        """By each further topic of a table whose rows are routed: the table's own topic."""

    # The stream.

    @property
    def watches(self) -> bool:
        """Whether any change matters: if not, `note` need not be called."""
        return bool(self._windows or self._owed)

    def is_watched(self, topic: str) -> bool:
        """Whether changes of this topic's table matter."""
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
        """The committed transaction `xid` made a record with this key. The other arguments are as in `Owed.note`."""
        topic = self._own.get(topic, topic)
        window = self._windows.get(topic)
        if window is not None:
            window.note(xid, key)
        numbers = self._owed_of.get(topic)
        if numbers is not None and key is not None:
            for number in numbers:
                self._owed[number].note(key, values, moved=moved, secret=secret)

    def truncated(self, xid: int, oids: Iterable[int]) -> None:
        """The committed transaction `xid` emptied these tables."""
        for oid in oids:
            topic = self._topics.get(oid, "")
            if topic in self._windows:
                self._windows[topic].note(xid, None)
            for number in self._owed_of.get(topic, ()):
                self._owed[number].truncated()

    def defined(self, oid: int, topics: Sequence[str]) -> None:
        """The stream has described a relation: changes of these topics, its own one first, are those of this table."""
        topic = topics[0]
        for each in topics[1:]:
            self._own[each] = topic
        if self._topics.get(oid) != topic:
            self._topics[oid] = topic
            self._index()

    # What is read.

    def has_window(self, topic: str) -> bool:
        """Whether a table is being read into this topic."""
        return topic in self._windows

    def open_window(self, oid: int, topic: str) -> Window:
        """Remember the changes of this table's rows from now on, until `close_window`."""
        self._topics[oid] = topic
        window = self._windows[topic] = Window()
        self._index()
        return window

    def close_window(self, topic: str) -> None:
        """Forget the window of this topic, if there is one."""
        self._windows.pop(topic, None)

    def owed(self, task: TableTask) -> Owed | None:
        """The rows that the task owes; None: no row of it was delivered yet."""
        return self._owed.get(task.number)

    def watch_owed(self, task: TableTask) -> None:
        """The table has a window: remember from now on which rows it owes."""
        self._owed.setdefault(task.number, Owed())
        self._index()

    def forget_seen(self, task: TableTask, window: Window | None, seen: Visibility | None) -> None:
        """No row of the task is read yet, and all will be read at `seen` or later: changes before it owe nothing."""
        owed = self._owed.get(task.number)
        if owed is None or window is None or seen is None or self._has_begun(task):
            return
        overtaken = window.overtaken(seen)
        if overtaken is not None:
            owed.begin(overtaken)

    def forget_unread(self, task: TableTask) -> None:
        """The plan is over. The task owes nothing if no row of it was delivered."""
        if not self._has_begun(task):
            self.forget_owed(task)

    def _has_begun(self, task: TableTask) -> bool:
        current = self._tasks.find(task.number)
        return current is not None and current.has_begun

    def resume_owed(self, task: TableTask) -> None:
        """A former session has delivered rows of the table, and wrote down which rows it owes."""
        self._owed[task.number] = Owed(task.owed)

    def forget_owed(self, task: TableTask) -> None:
        """The task owes nothing: it has ended, or is read from its beginning. The progress says so already."""
        if self._owed.pop(task.number, None) is not None:
            self._index()

    def write_down(self) -> Progress | None:
        """The progress for the checkpoint, with the owed rows in it; None: no snapshot was ever asked for."""
        progress = self._tasks.progress
        for number, owed in self._owed.items():
            task = self._tasks.find(number)
            if task is not None:
                progress = progress.owe(task, owed.to_write_down())
        self._tasks.progress = progress
        return None if progress == Progress() else progress

    def _index(self) -> None:
        """Find out by topic who owes rows of it. A table without a topic has had no change yet."""
        self._owed_of.clear()
        for task in self._tasks.progress.tasks:
            if task.has_begun and not task.ended and task.number not in self._owed:
                # The initial snapshot has left the table in the middle.
                self.resume_owed(task)
            topic = self._topics.get(task.oid)
            if topic is not None and task.number in self._owed:
                self._owed_of.setdefault(topic, []).append(task.number)
