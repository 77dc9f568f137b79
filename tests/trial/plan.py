"""What a seed decides before a trial begins: the server's version, sizes of Kafka transactions, and the faults."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.ha.failover import FAILOVER_SINCE
from tests.trial.faults import FAULTS, Fault, schedule

if TYPE_CHECKING:
    # Where the product is compiled, nothing can be planted, and the module cannot be imported.
    from tests.trial.planted import Mistake

VERSIONS: Final = (13, 14, 15, 16, 17, 17, 17, 18, 18, 18)
"""What a seed draws from: more of those that can fail over."""

BYTES_MAX: Final = (16_384, 131_072, 4_194_304)
"""Large transactions are handed over in parts with the first two."""

CUT: Final = 0.25
"""The share of trials in which a large transaction is several of Kafka's, which a restart continues inside."""

BULK: Final = 0.04
"""The share of large transactions."""

TIMEOUT_S: Final = 10

DELIVERED_S: Final = 180.0
"""How long it may take at the end until everything is delivered. Some mistakes deliver nothing more: they get less."""

PLANTED_S: Final = 40.0


@dataclass(frozen=True)
class Plan:
    """What is done in a trial.

    Attributes:
        transaction: `kafka.transaction` of the configuration.
        bulk: the share of large transactions.
        patience_s: how long the delivery of the rest may take.
    """

    version: int
    transaction: Mapping[str, int]
    faults: tuple[Fault, ...]
    bulk: float
    patience_s: float


def draw_plan(seed: int, seconds: float, version: int | None = None) -> Plan:
    """The plan of a seed. A given version changes nothing else but the failover."""
    dice = random.Random(f"trial {seed}")
    drawn = dice.choice(VERSIONS)
    transaction = {"timeout_s": TIMEOUT_S, "bytes_max": dice.choice(BYTES_MAX)}
    if dice.random() < CUT:
        transaction["whole_bytes_max"] = 0
    version = version or drawn
    faults = schedule(seed, seconds, failover=version >= FAILOVER_SINCE, kinds=tuple(FAULTS))
    return Plan(version, transaction, faults, BULK, DELIVERED_S)


def plan_for(mistake: "Mistake", seed: int, seconds: float, version: int | None = None) -> Plan:
    """The conditions in which a mistake is looked for."""
    return Plan(
        version or max(VERSIONS),
        {"timeout_s": TIMEOUT_S, **mistake.transaction},
        schedule(seed, seconds, failover=False, kinds=mistake.faults),
        mistake.bulk,
        PLANTED_S,
    )
