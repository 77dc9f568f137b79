from datetime import UTC, datetime, timedelta

from cdcd.mirror.watching.observed import count
from cdcd.mirror.watching.progress import (
    BatchDone,
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
    committed = datetime.now(UTC) - timedelta(seconds=30)
    count(MirrorStarted("shop", 2, once=False), numbers)
    count(Retrying("Kafka is away.", "", 1.0), numbers)
    assert not numbers.health().well
    done = Progress(
        "public.a", records=9, changes=7, quarantined=1, held=1, commit_lsn=70, commit_time=committed
    )
    count(BatchDone(3, (done, Progress("public.b")), 1.5, 65), numbers)
    count(TableStopped("public.b", "no", ""), numbers)
    count(TableReloaded("public.a", 10, 0, 80, 2.0), numbers)
    count(TopicUnfit("shop.public.a", "is compacted", "do"), numbers)
    a, b = numbers.tables["public.a"], numbers.tables["public.b"]
    assert (a.changes, a.quarantined, a.held, a.commit_lsn, a.reloads) == (7, 1, 1, 70, 1)
    assert a.lag_s is not None
    assert 29 < a.lag_s < 60
    assert (b.lag_s, b.stopped, b.failures) == (None, "no", 1)
    assert (numbers.batches, numbers.retries, numbers.consistent_lsn) == (1, 1, 65)
    assert numbers.unfit == {"shop.public.a"}
    assert numbers.health().detail["reasons"] == ["public.b is stopped: no"]
