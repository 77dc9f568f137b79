"""Which faults there are, and when they come: a schedule that only a seed decides. Pure.

Faults of one group never overlap, and two groups at most have a fault at a time: three brokers of which two are away
can write nothing, which tests little. `target` and `amount` are drawn for every fault, so that a fault that is left out
changes no other one.
"""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

FAULTS: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "daemon killed": ("daemon", 4),
        "daemon frozen": ("daemon", 2),
        "daemon stopped": ("daemon", 1),
        "clock jumped": ("daemon", 1),
        "disk full": ("daemon", 1),
        "postgres link cut": ("link", 2),
        "postgres link slow": ("link", 1),
        "kafka links cut": ("link", 2),
        "one kafka link cut": ("link", 2),
        "kafka links slow": ("link", 2),
        "broker killed": ("kafka", 2),
        "broker frozen": ("kafka", 2),
        "broker stopped": ("kafka", 1),
        "leaders moved": ("kafka", 2),
        "postgres killed": ("postgres", 1),
        "postgres frozen": ("postgres", 1),
        "postgres restarted": ("postgres", 1),
        "standby frozen": ("postgres", 1),
    }
)
"""Group and weight of each fault that can come at any time."""

FAILOVER: Final = "failover"
"""The primary is killed and the standby promoted: once in a trial, in its second half."""

STANDBY: Final = "standby frozen"
"""Not after a failover: then there is none."""

GAP_S: Final = (0.3, 3.0)
"""Seconds between the beginnings of two faults."""

LASTS_S: Final = (0.2, 6.0)

AT_ONCE: Final = 2

CALM_S: Final = 2.0
"""Seconds without a fault at the beginning, so that there is something to lose."""

BROKERS: Final = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: from `at_s`, counted from the start of the clients, for `lasts_s`.

    Attributes:
        target: the broker.
        amount: between -1 and 1; how far and in which direction, where that has a meaning.
    """

    at_s: float
    kind: str
    lasts_s: float
    target: int
    amount: float

    @property
    def group(self) -> str:
        return "postgres" if self.kind == FAILOVER else FAULTS[self.kind][0]

    @property
    def ends_s(self) -> float:
        return self.at_s + self.lasts_s


def schedule(
    seed: int, seconds: float, *, failover: bool, kinds: Collection[str] = tuple(FAULTS)
) -> tuple[Fault, ...]:
    """The faults of a seed, by the time at which they begin; all of them end within `seconds`.

    Args:
        failover: whether the server can (PostgreSQL 17 and newer).
        kinds: only these; for planted mistakes.
    """
    dice = random.Random(f"faults {seed}")
    moment = dice.uniform(0.5, 0.9) * seconds
    switch = Fault(moment, FAILOVER, 0.0, 0, 0.0)
    found: list[Fault] = [switch] if failover else []
    at_s = CALM_S
    while True:
        at_s += dice.uniform(*GAP_S)
        lasts_s = dice.uniform(*LASTS_S)
        if at_s + lasts_s > seconds:
            break
        open_now = [each for each in found if each.at_s < at_s + lasts_s and at_s < each.ends_s + GAP_S[0]]
        busy = {each.group for each in open_now}
        gone = {STANDBY} if failover and at_s + lasts_s > moment else set()
        weights = {
            kind: weight
            for kind, (group, weight) in FAULTS.items()
            if kind in kinds and kind not in gone and group not in busy
        }
        target, amount = dice.randrange(BROKERS), dice.uniform(-1, 1)
        draw = dice.random()
        if not weights or len(busy) >= AT_ONCE:
            continue
        found.append(Fault(at_s, _pick(weights, draw), lasts_s, target, amount))
    return tuple(sorted(found, key=lambda each: each.at_s))


def _pick(weights: Mapping[str, int], draw: float) -> str:
    left = draw * sum(weights.values())
    for kind, weight in weights.items():
        left -= weight
        if left < 0:
            return kind
    return max(weights)
