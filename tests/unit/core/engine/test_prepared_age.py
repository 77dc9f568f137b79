"""Prepared transactions that nobody decides."""

from cdcd.core.engine.prepared_age import PreparedAge
from cdcd.core.facts import Fact
from cdcd.core.facts.transactions import PreparedOld
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US

MINUTE_US = 60_000_000


def test_each_is_warned_of_once_from_the_age_on_that_holds_now():
    facts: list[Fact] = []
    ages = PreparedAge(120.0, facts.append)
    at = 7 * MINUTE_US
    now = POSTGRES_EPOCH_US + at
    ages.check(None, 50, now)
    ages.check(("a", at), 50, now + MINUTE_US)
    assert facts == []
    ages.warning_age_s = 60.0
    for minutes in (1, 2):
        ages.check(("a", at), 60, now + minutes * MINUTE_US)
    ages.check(("b", at + MINUTE_US), 70, now + 3 * MINUTE_US)
    assert facts == [
        PreparedOld(gid="a", age_s=60, held_at="0/3C"),
        PreparedOld(gid="b", age_s=120, held_at="0/46"),
    ]
