from datetime import datetime
from typing import Any

import pytest

from cdcd.mirror.jars import ICEBERG
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.log.upkeep import LogUpkeep, no_needs
from cdcd.mirror.targets.target import Maintenance
from cdcd.mirror.watching.progress import Fact, TableFailed

PLACE = LogPlace("`lake`.`cdcd`.`log`", ICEBERG, "/checkpoint")


class NoSession:
    """A session whose catalogue does not answer."""

    def table(self, name: str) -> Any:
        raise ConnectionError(f"no catalogue for {name}")


def upkeep(interval_s: float | None, facts: list[Fact]) -> LogUpkeep:
    session: Any = NoSession()
    return LogUpkeep(session, PLACE, Maintenance(), interval_s, no_needs, facts.append)


@pytest.mark.parametrize(("interval_s", "rounds"), [(None, 0), (3600, 1), (0, 3)])
def test_a_process_maintains_the_log_at_its_first_run_and_then_by_the_interval(
    interval_s: float | None, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, made = upkeep(interval_s, []), list[datetime]()
    maintain = one.round

    def round_(now: datetime) -> bool:
        made.append(now)
        return maintain(now)

    monkeypatch.setattr(one, "round", round_)
    for _ in range(3):
        if interval_s != 0:
            # The query looks for a round that is due, and its run ends before one is.
            one.look()
        one.finish()
        one.end(0)
    assert len(made) == rounds


def test_a_round_beside_the_query_begins_after_the_interval_and_never_twice_at_once() -> None:
    facts: list[Fact] = []
    late, now = upkeep(3600, facts), upkeep(0, facts)
    for _ in range(3):
        late.look()
    assert facts == []
    now.look()
    now.look()
    now.end(10)
    (failed,) = facts
    assert isinstance(failed, TableFailed)
    assert "no catalogue" in failed.message
    assert not failed.stopped


def test_a_failure_after_the_end_is_not_told() -> None:
    facts: list[Fact] = []
    one = upkeep(0, facts)
    one.end(0)
    assert not one.round(datetime.now().astimezone())
    assert facts == []
