from cdcd.mirror.watching.observed import count
from cdcd.mirror.watching.progress import (
    BatchDone,
    LogAppended,
    MirrorStarted,
    Progress,
    Retrying,
    TableReloaded,
    TableStopped,
    TopicUnfit,
)
from cdcd.telemetry.mirror import MirrorTelemetry


def test_what_a_mirror_tells_is_in_its_numbers():
    numbers = MirrorTelemetry()
    count(MirrorStarted("shop", 2, once=False), numbers)
    count(LogAppended("lake.cdcd.log", 3, 9, 7, 1, 70, 2.5, 1.0), numbers)
    count(BatchDone(3, (Progress("public.a", changes=7, rows=4, commit_lsn=70),), 1.5, 65), numbers)
    count(TableStopped("public.b", "no", ""), numbers)
    count(TableReloaded("public.a", 10, 0, 80, 2.0), numbers)
    count(TopicUnfit("shop.public.a", "is compacted", "do"), numbers)
    a, b = numbers.tables["public.a"], numbers.tables["public.b"]
    assert (a.changes, a.commit_lsn, a.reloads) == (7, 70, 1)
    assert (b.stopped, b.failures) == ("no", 1)
    assert (numbers.batches, numbers.consistent_lsn) == (1, 65)
    assert (numbers.log_batches, numbers.log_records, numbers.log_unreadable, numbers.log_lag_s) == (
        1,
        9,
        1,
        2.5,
    )
    assert numbers.unfit == {"shop.public.a"}
    assert numbers.health().detail["reasons"] == ["public.b is stopped: no"]


def test_a_service_that_was_away_is_back_when_the_mirror_goes_on():
    numbers = MirrorTelemetry()
    count(Retrying("Kafka is away.", "", 1.0), numbers)
    # Folds of changes that the log has already do not need Kafka.
    count(BatchDone(3, (Progress("public.a", 1, 1),), 1.5, 65), numbers)
    assert (numbers.health().well, numbers.retries) == (False, 1)
    count(MirrorStarted("shop", 2, once=False), numbers)
    assert numbers.health().well
