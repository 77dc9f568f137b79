"""An `Incremental` with what it needs, and a table that it reads."""

from collections.abc import Mapping
from typing import Any

from cdcd.core.engine.actions import Question
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.table_task import TableTask
from tests.unit.core.engine.tables import PAGE, Facts, Rendering, looked, no_fates, nobody, table, tasks

T = "public.t"


class Daemon:
    """An `Incremental` with what it needs; `ask` and `answer` are the engine's two verbs."""

    def __init__(self, progress: Progress | None = None, **options: Any) -> None:
        self.rendering = Rendering()
        self.facts = Facts()
        self.changes = 0
        self.now = 0.0
        self.owned: dict[int, str] = {}
        """Tables that have other names in the stream than they have by now."""
        names: Mapping[int, str] = options.pop("names", {1: T, 2: "public.u"})
        self.incremental = Incremental(
            tasks(progress or Progress(), names, self.facts, self._changed),
            self.rendering,
            SnapshotSettings(
                chunk_bytes=options.pop("chunk_bytes", 4 * PAGE),
                parallelism=options.pop("parallelism", 2),
                tables_ahead=options.pop("ahead", 0),
            ),
            no_fates(),
            observe=self.facts,
            owns=lambda oid, name: self.owned.get(oid, name) == name,
            ends_rows=options.pop("ends_rows", True),
        )

    def _changed(self) -> None:
        self.changes += 1

    @property
    def progress(self) -> Progress:
        return self.incremental.progress

    def is_done(self) -> bool:
        return self.progress.is_done

    def ask(self) -> tuple[object, Question]:
        found = self.incremental.next_question(self.now)
        assert found is not None, "nothing is asked"
        return found

    def asks_nothing(self) -> bool:
        return self.incremental.next_question(self.now) is None

    def answer(self, answer: Any) -> Question:
        """Answer the next question; returns it."""
        asked, question = self.ask()
        self.incremental.plan_answered(asked, answer, self.now)
        return question

    def answers(self, *answers: Any) -> None:
        for each in answers:
            self.answer(each)

    def between(self, position: int = 1000) -> None:
        self.incremental.snapshots.end_disturbed(self.now)
        self.incremental.snapshots.place(self.now)
        self.incremental.reads.send_due(position, self.now)

    def plan(self, found: Any = None, seen: int = 100) -> None:
        """Everything up to the first chunk."""
        found = table() if found is None else found
        self.answers(looked(found, seen=seen), nobody(seen), looked(found, seen=seen))


def asked_for(*tasks: TableTask) -> Progress:
    return Progress().add(tasks or [TableTask(T, 1)])


def reading(progress: Progress | None = None, found: Any = None, **options: Any) -> Daemon:
    """A daemon with a plan for the table."""
    daemon = Daemon(progress or asked_for(), **options)
    daemon.plan(found)
    return daemon
