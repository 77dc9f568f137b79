from dataclasses import replace

import pytest

from cdcd.adapters.postgres.refusals import SlotActiveError
from cdcd.adapters.postgres.slot import SlotState, check_slot
from cdcd.core.errors import PositionError, SourceError

SLOT = SlotState(
    name="cdcd_shop",
    plugin="pgoutput",
    database="shop",
    temporary=False,
    active=True,
    active_pid=11,
    restart_lsn=0x100,
    confirmed_flush_lsn=0x1000,
    wal_status="reserved",
    safe_wal_size=None,
    two_phase=False,
    failover=False,
    invalidation_reason="",
    retained_bytes=0,
    current_lsn=0x1400,
)
PHYSICAL = replace(SLOT, plugin="", database="", confirmed_flush_lsn=None)
# What pg_replication_slots shows between ReplicationSlotCreate and the end of the search for a consistent point.
JUST_BEGUN = replace(SLOT, plugin="", restart_lsn=None, confirmed_flush_lsn=None)
SEARCHING = replace(SLOT, confirmed_flush_lsn=None)


def test_a_slot_of_this_database_can_feed_the_pipeline():
    check_slot(SLOT, "shop")


@pytest.mark.parametrize("state", [JUST_BEGUN, SEARCHING])
def test_a_slot_whose_creation_is_under_way_is_waited_for(state):
    with pytest.raises(SlotActiveError, match="still being created by the session with PID 11"):
        check_slot(state, "shop")


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        (PHYSICAL, SourceError, "is a physical one"),
        (replace(SLOT, plugin="wal2json"), SourceError, "uses the plugin wal2json"),
        (replace(SLOT, database="bank"), SourceError, "belongs to database bank"),
        (replace(SLOT, temporary=True), SourceError, "temporary"),
        (replace(SLOT, invalidation_reason="wal_removed"), PositionError, "has been invalidated"),
    ],
)
def test_a_slot_that_cannot_feed_the_pipeline_is_refused_with_what_it_is(state, kind, words):
    with pytest.raises(kind, match=words):
        check_slot(state, "shop")
