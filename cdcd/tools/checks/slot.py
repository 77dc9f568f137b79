"""Checks of the slot, of the WAL that the server keeps for it, and of takeovers, for `cdcd check`.

In a takeover, one instance replaces another, or a standby replaces the primary.
"""

from collections.abc import Iterator
from typing import Final

from cdcd.adapters.postgres.inspection import ServerFacts, ServerWanted
from cdcd.adapters.postgres.slot import FAILOVER_SINCE, check_slot
from cdcd.core.engine.startup_rules import gap_hint
from cdcd.core.errors import CdcdError, PositionError
from cdcd.core.protocol.versions import ALTER_TWO_PHASE_SINCE
from cdcd.telemetry.findings import Finding, named, of_error

KEEP_SIZE_SMALL_MB: Final = 1024
"""MB of max_slot_wal_keep_size below which an outage of minutes may use it up on a busy server."""

RETAINED_BYTES: Final = 1 << 30
"""Bytes of kept WAL above which a slot is behind."""


def check_slot_state(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Check the slot, its WAL, and the transactions that its creation would wait for."""
    name = f"slot {wanted.slot}"
    slot = facts.slot
    if slot is None:
        found = "will be created; later changes are sent, and snapshot.mode decides about existing rows"
        yield Finding("ok", "slot.state", name, found)
        if facts.session.open_transactions:
            yield Finding(
                "warning",
                "slot.state",
                name,
                f"its creation will wait for {named(facts.session.open_transactions)}",
                "Run COMMIT or ROLLBACK for them (ROLLBACK PREPARED for prepared transactions).",
            )
        return
    try:
        check_slot(slot, facts.session.database)
    except PositionError as error:
        if wanted.when_needed:
            yield _replaced(name, error.message, wanted)
        else:
            yield of_error("slot.state", name, error)
        return
    except CdcdError as error:
        yield of_error("slot.state", name, error)
        return
    reader = (
        f"read by {facts.slot_reader or 'a session'} (PID {slot.active_pid})"
        if slot.active
        else "nobody reads it"
    )
    found = f"{reader}; keeps {_size(slot.retained_bytes)} of WAL ({slot.wal_status})"
    if slot.wal_status == "lost" and wanted.when_needed:
        yield _replaced(name, f"{found}: the server has removed WAL that the pipeline needs", wanted)
    elif slot.wal_status in ("unreserved", "lost"):
        yield Finding(
            "error",
            "slot.state",
            name,
            found,
            "Its WAL is about to be removed: start cdcd now, or raise max_slot_wal_keep_size.",
        )
    elif slot.active and facts.slot_reader not in ("", wanted.pipeline):
        yield Finding(
            "error",
            "slot.active",
            name,
            found,
            f"End that session: SELECT pg_terminate_backend({slot.active_pid}); or give this pipeline a slot of its "
            "own (postgres.slot). Two programs must not share a slot: cdcd never gets changes that the other confirms.",
        )
    else:
        yield Finding("ok", "slot.state", name, found)
    if slot.two_phase and not wanted.two_phase:
        altered = facts.server_version >= ALTER_TWO_PHASE_SINCE
        yield Finding(
            "ok" if altered else "warning",
            "slot.two_phase",
            name,
            "decodes prepared transactions at PREPARE"
            + (", which cdcd changes when it starts" if altered else ", whatever the stream asks for"),
            ""
            if altered
            else "To remove this warning, set postgres.two_phase: true. Before PostgreSQL 18, a slot keeps that mode.",
        )


def _replaced(name: str, why: str, wanted: ServerWanted) -> Finding:
    """Return the finding for an unusable slot, which the next start replaces."""
    hint = gap_hint(heals=wanted.heals, truncate=wanted.truncate)
    what = "heals the topics (snapshot.lost_slot)" if wanted.heals else "reads the tables again"
    return Finding(
        "warning",
        "slot.state",
        name,
        f"{why} snapshot.mode: when_needed creates a new slot at the next start, and {what}.",
        hint,
    )


def check_retention(facts: ServerFacts, _: ServerWanted) -> Iterator[Finding]:
    """Check how much WAL an outage of cdcd may cost, and when PostgreSQL invalidates the slot because of it."""
    keep = facts.settings["max_slot_wal_keep_size"]
    unlimited = "unlimited: while cdcd or Kafka is away, WAL piles up until the disk is full"
    if keep.value < 0 and facts.slot is not None and facts.slot.retained_bytes < RETAINED_BYTES:
        # Reported before the first start, when the operator decides, and when it becomes important.
        yield Finding("ok", "wal.keep", "max_slot_wal_keep_size", unlimited)
    elif keep.value < 0:
        yield Finding(
            "warning",
            "wal.keep",
            "max_slot_wal_keep_size",
            unlimited,
            "Watch the retained WAL (cdcd's metrics), or set a limit that outlasts your longest outage, beyond which "
            "the slot is lost: ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();",
        )
    elif keep.value < KEEP_SIZE_SMALL_MB:
        yield Finding(
            "warning",
            "wal.keep",
            "max_slot_wal_keep_size",
            f"{keep.shown}: a short outage on a busy server is enough to lose the slot",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();",
        )
    else:
        yield Finding("ok", "wal.keep", "max_slot_wal_keep_size", keep.shown)
    idle = facts.settings.get("idle_replication_slot_timeout")
    if idle is not None and idle.value > 0:
        yield Finding(
            "warning",
            "slot.idle",
            "idle_replication_slot_timeout",
            f"{idle.shown}: a pipeline that is stopped for longer loses its slot",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
        )


def _size(count: int) -> str:
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"


def check_takeover(facts: ServerFacts, _: ServerWanted) -> Iterator[Finding]:
    """Check that a standby can see the active instance's signs of life in pg_stat_activity."""
    tracked = facts.settings.get("track_activities")
    if tracked is not None and tracked.shown == "off":
        yield Finding(
            "warning",
            "server.activities",
            "track_activities",
            "off: a standby cannot distinguish a frozen instance from an idle one, so it takes over only when TCP "
            "ends the connection",
            "ALTER SYSTEM SET track_activities = on; SELECT pg_reload_conf();",
        )


def check_failover(facts: ServerFacts, wanted: ServerWanted) -> Iterator[Finding]:
    """Check that the slot can follow to a new primary, which must then have everything that Kafka has."""
    if facts.server_version < FAILOVER_SINCE:
        if wanted.failover:
            yield Finding(
                "error",
                "slot.failover",
                "failover",
                f"needs PostgreSQL {FAILOVER_SINCE // 10000}, and the server has {facts.server_version // 10000}",
                "Set postgres.failover: false.",
            )
        return
    if not (wanted.failover or (facts.slot and facts.slot.failover)):
        return
    setting = facts.settings.get("synchronized_standby_slots")
    names = [name.strip() for name in setting.shown.split(",") if name.strip()] if setting else []
    if absent := [name for name in names if name not in facts.streaming_slots]:
        yield Finding(
            "error",
            "slot.failover",
            "synchronized_standby_slots",
            f"names {', '.join(absent)}, which no standby reads: PostgreSQL sends cdcd nothing until a standby reads "
            f"it",
            "Bring the standby back, or take it out: ALTER SYSTEM SET synchronized_standby_slots = '...'; "
            "SELECT pg_reload_conf();",
        )
    elif not names:
        yield Finding(
            "warning",
            "slot.failover",
            "synchronized_standby_slots",
            "empty: after a failover Kafka may hold changes that the new primary lacks, and cdcd will refuse to go on",
            "ALTER SYSTEM SET synchronized_standby_slots = '<slot of each standby>'; SELECT pg_reload_conf();",
        )
    else:
        yield Finding("ok", "slot.failover", "synchronized_standby_slots", ", ".join(names))
