"""What `cdcd check` says of takeovers: of an instance's by another, and of the primary's by its standby."""

from collections.abc import Iterator

from cdcd.adapters.postgres.inspection import Facts, Wanted
from cdcd.adapters.postgres.slot import FAILOVER_SINCE
from cdcd.telemetry.findings import Finding


def check_takeover(facts: Facts, _: Wanted) -> Iterator[Finding]:
    """A standby sees the active instance's signs of life in pg_stat_activity."""
    tracked = facts.settings.get("track_activities")
    if tracked is not None and tracked.shown == "off":
        yield Finding(
            "warning",
            "server.activities",
            "track_activities",
            "off: a standby cannot tell an instance that is frozen or cut off from one that is quiet, and takes over "
            "only when TCP gives that one up",
            "ALTER SYSTEM SET track_activities = on; SELECT pg_reload_conf();",
        )


def check_failover(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Whether the slot can follow to a new primary, and whether that would have what Kafka has."""
    if facts.server_version < FAILOVER_SINCE:
        if wanted.failover:
            yield Finding(
                "error",
                "slot.failover",
                "failover",
                f"needs PostgreSQL {FAILOVER_SINCE // 10000}, this is {facts.server_version // 10000}",
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
            f"names {', '.join(absent)}, which no standby reads: PostgreSQL sends cdcd nothing until one does",
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
