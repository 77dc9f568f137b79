"""What is said of takeovers and failovers, over facts made up for it."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from cdcd.adapters.postgres.inspection import ServerFacts, ServerWanted, Setting
from cdcd.telemetry.findings import Finding
from cdcd.tools.checks.slot import check_failover, check_takeover
from tests.unit.tools.checks.test_postgres import FACTS, WANTED, with_setting, with_slot

FAILOVER = replace(WANTED, failover=True)


def named(text: str, *streaming: str) -> ServerFacts:
    """A server whose synchronized_standby_slots is `text`, and the slots that standbys read."""
    setting = Setting(text, 0, "")
    return replace(with_setting(synchronized_standby_slots=setting), streaming_slots=frozenset(streaming))


@pytest.mark.parametrize(
    ("check", "facts", "wanted", "level", "words"),
    [
        (check_takeover, with_setting(track_activities=Setting("off", 0, "")), WANTED, "warning", "frozen"),
        (check_failover, replace(FACTS, server_version=160004), FAILOVER, "error", "needs PostgreSQL 17"),
        (check_failover, named(""), FAILOVER, "warning", "lacks"),
        (
            check_failover,
            replace(with_slot(failover=True), settings=named("").settings),
            WANTED,
            "warning",
            "lacks",
        ),
        (check_failover, named("one, two", "one"), FAILOVER, "error", "names two"),
        (check_failover, named("one, two", "one", "two"), FAILOVER, "ok", "one, two"),
    ],
)
def test_what_is_amiss_is_said(
    check: Callable[[ServerFacts, ServerWanted], Iterator[Finding]],
    facts: ServerFacts,
    wanted: ServerWanted,
    level: str,
    words: str,
) -> None:
    (finding,) = check(facts, wanted)
    assert finding.level == level
    assert words in finding.found


def test_nothing_is_said_where_nothing_is_asked_for() -> None:
    assert not list(check_takeover(with_setting(track_activities=Setting("on", 0, "")), WANTED))
    assert not list(check_failover(replace(FACTS, server_version=130000), WANTED))
    assert not list(check_failover(named(""), WANTED))
