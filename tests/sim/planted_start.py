"""Bugs in the order of a session's start."""

from collections.abc import Callable
from typing import Final

from cdcd.core.engine.leavings import FirstStart, Leaving
from cdcd.core.engine.logged import DurableLog
from cdcd.core.engine.startup import STEPS, Start
from cdcd.core.engine.startup_positions import Step
from cdcd.core.engine.startup_requests import LookAtLog, PeekCheckpoint, ReadRoots, RemoveLogged
from cdcd.core.errors import SinkError

Steps = tuple[Callable[[Start], Step], ...]


def without(step: Callable[[Start], Step]) -> Steps:
    return tuple(one for one in STEPS if one is not step)


def swapped(first: Callable[[Start], Step], then: Callable[[Start], Step]) -> Steps:
    other = {first: then, then: first}
    return tuple(other.get(one, one) for one in STEPS)


def replaced(step: Callable[[Start], Step], by: Callable[[Start], Step]) -> Steps:
    return tuple(by if one is step else one for one in STEPS)


def fences_without_reading(start: Start) -> Step:
    """Believes the checkpoint that was read before the former instance was shut out."""
    positions = start.positions
    peeked = positions.found
    yield from start.fence()
    positions.found = peeked


def looks_at_the_slot_once(start: Start) -> Step:
    """Compares each checkpoint with the slot as it was at first."""
    positions = start.positions
    seen = positions._look_at_slot
    asked = False

    def look() -> Step:
        nonlocal asked
        if not asked:
            asked = True
            yield from seen()

    positions._look_at_slot = look  # type: ignore[method-assign]
    try:
        yield from start.judge()
    finally:
        positions._look_at_slot = seen  # type: ignore[method-assign]


def judges_by_what_readers_see(start: Start) -> Step:
    """Refuses a checkpoint that does not fit, although another one may be hidden behind it."""
    positions = start.positions
    yield from positions._look_at_slot()
    positions.found = yield PeekCheckpoint()
    yield from positions._compare()


def removes_what_postgresql_was_told_of(start: Start) -> Step:
    """Takes what the slot has passed for delivered, although only the checkpoint says what Kafka has."""
    positions = start.positions
    log: DurableLog | None = yield LookAtLog()
    confirmed = None if positions.slot is None else positions.slot.confirmed
    sessions = () if log is None or confirmed is None else log.sessions
    gone = tuple([session.number for session in sessions if session.end <= (confirmed or 0)])
    if gone:
        if positions.logged is not None and positions.logged.number in gone:
            positions.logged = None
        yield RemoveLogged(gone)


def writes_settings_untold(start: Start) -> Step:
    """Takes over the settings that decide how rows become records, and compares them afterwards."""
    found = start.positions.found
    start.positions.found = None
    try:
        yield from start.write_checkpoint()
    finally:
        start.positions.found = found


def takes_any_roots(start: Start) -> Step:
    """Goes on by whatever the publication says of partitioned tables now."""
    start.records.compare_roots(None, (yield ReadRoots()))


FENCED_FIRST: Final = swapped(Start.judge, Start.fence)
NOT_JUDGED: Final = without(Start.judge)
JUDGED_BY_READERS: Final = replaced(Start.judge, judges_by_what_readers_see)
READ_BEFORE_FENCE: Final = replaced(Start.fence, fences_without_reading)
LOOKED_AT_ONCE: Final = replaced(Start.judge, looks_at_the_slot_once)
NOT_LOCKED: Final = without(Start.take_lock)
ROOTS_LOST: Final = tuple(
    takes_any_roots if step is Start.compare_roots else step for step in without(Start.judge_roots)
)
SETTINGS_UNTOLD: Final = replaced(Start.write_checkpoint, writes_settings_untold)
LOG_REMOVED_BY_THE_SLOT: Final = replaced(Start.remove_delivered_logs, removes_what_postgresql_was_told_of)


class DropsWhatDelivered(FirstStart):
    """Takes the slot back whatever was delivered by it."""

    def leaves(
        self, error: BaseException | None, *, has_shipped: bool, outcome_unknown: bool = False
    ) -> Leaving:
        return super().leaves(error, has_shipped=False, outcome_unknown=outcome_unknown)


class DropsAnySlot(FirstStart):
    """Takes a slot back that another start made."""

    def leaves(
        self, error: BaseException | None, *, has_shipped: bool, outcome_unknown: bool = False
    ) -> Leaving:
        if not self.made and isinstance(error, SinkError):
            return Leaving.DROP
        return super().leaves(error, has_shipped=has_shipped, outcome_unknown=outcome_unknown)


class DropsWhatTheCheckpointNames(FirstStart):
    """Takes the slot back and leaves its checkpoint."""

    def leaves(
        self, error: BaseException | None, *, has_shipped: bool, outcome_unknown: bool = False
    ) -> Leaving:
        leaving = super().leaves(error, has_shipped=has_shipped, outcome_unknown=outcome_unknown)
        return Leaving.DROP if leaving is Leaving.FORGET else leaving


class TakesARefusalForTheOutcome(FirstStart):
    """Takes the slot back if Kafka refuses, though an earlier commit had no answer."""

    def leaves(
        self, error: BaseException | None, *, has_shipped: bool, outcome_unknown: bool = False
    ) -> Leaving:
        return super().leaves(error, has_shipped=has_shipped, outcome_unknown=False)
