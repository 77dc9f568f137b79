from dataclasses import replace
from datetime import UTC, datetime, timedelta

from cdcd.mirror.watching.stops import NOTED, Stop, Stops

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STOP = Stop("public.a", NOW, False, "n changed", "read it again")
WAIT = Stop("public.a", NOW, True, "3 changes wait", "start the daemon")
LATER = NOW + timedelta(hours=1)


def test_a_stop_is_written_once_and_taken_away_when_the_table_goes_on():
    stops = Stops()
    assert stops.changes(NOW) == {}
    stops.failed("t", STOP)
    assert stops.changes(NOW) == {"t": STOP}
    # Until it was written, it is to be.
    assert stops.changes(NOW) == {"t": STOP}
    stops.written({"t": STOP})
    assert stops.changes(LATER) == {}
    assert stops.went_on("t")
    assert stops.changes(LATER) == {"t": None}
    stops.written({"t": None})
    assert stops.changes(LATER) == {}
    assert not stops.went_on("t")


def test_a_table_that_stops_again_at_the_next_start_is_stopped_since_it_first_was():
    stops = Stops()
    stops.found({"t": STOP})
    stops.failed("t", replace(STOP, since=LATER))
    assert stops.changes(LATER) == {}
    stops.failed("t", replace(STOP, since=LATER, message="k changed"))
    assert stops.changes(LATER) == {"t": replace(STOP, message="k changed")}


def test_a_table_that_waits_is_written_when_it_has_waited_for_long():
    stops = Stops()
    stops.failed("t", WAIT)
    assert stops.changes(NOW + NOTED / 2) == {}
    stops.failed("t", replace(WAIT, since=NOW + NOTED / 2))
    assert stops.changes(NOW + NOTED) == {"t": WAIT}
    stops.written({"t": WAIT})
    # Other words for the same wait are no reason for a commit; that it stops is one.
    stops.failed("t", replace(WAIT, message="4 changes wait"))
    assert stops.changes(LATER) == {}
    stops.failed("t", replace(STOP, since=LATER))
    assert stops.changes(LATER) == {"t": STOP}


def test_a_wait_that_was_short_leaves_no_trace():
    stops = Stops()
    stops.failed("t", WAIT)
    assert not stops.went_on("t")
    assert stops.changes(LATER) == {}
