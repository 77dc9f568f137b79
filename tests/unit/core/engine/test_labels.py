"""Tables are described again when labels of enums changed, and the checkpoint says when all of them are."""

from cdcd.core.engine.labels import Labels
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.snapshot.progress import Progress


def made() -> tuple[Labels, SnapshotTasks]:
    kept = SnapshotTasks(Progress(), names={}, observe=lambda _: None, changed=lambda: None)
    return Labels(kept), kept


def test_without_a_change_nothing_is_asked():
    labels, _ = made()
    labels.listed(0)
    assert not labels.wants_tables()
    assert labels.next_table() == 0
    assert labels.take() == []


def test_each_table_is_looked_at_one_after_the_other_and_the_last_one_counts():
    labels, kept = made()
    labels.listed(5)
    assert labels.wants_tables()
    assert not labels.wants_tables()
    assert labels.take() == []
    labels.found((1, 2, 3))
    assert labels.next_table() == 1
    assert labels.next_table() == 0
    labels.described(1)
    assert labels.describes(1)
    assert labels.take() == [1]
    assert not labels.describes(1)
    assert labels.next_table() == 2
    labels.gone()
    assert labels.next_table() == 3
    assert kept.progress.labels == 0
    labels.described(3)
    assert labels.take() == [3]
    assert kept.progress.labels == 5
    labels.listed(5)
    assert not labels.wants_tables()


def test_a_change_without_tables_is_done_at_once():
    labels, kept = made()
    labels.listed(5)
    assert labels.wants_tables()
    labels.found(())
    assert labels.take() == []
    assert kept.progress.labels == 5


def test_a_question_without_an_answer_is_asked_again_after_the_next_list():
    labels, kept = made()
    labels.listed(5)
    assert labels.wants_tables()
    labels.found((1, 2))
    assert labels.next_table() == 1
    labels.failed()
    assert labels.next_table() == 0
    assert labels.take() == []
    assert kept.progress.labels == 0
    labels.listed(5)
    assert labels.wants_tables()


def test_the_checksum_is_in_the_checkpoint():
    progress = Progress(labels=-7)
    assert Progress.from_json(progress.to_json()) == progress
