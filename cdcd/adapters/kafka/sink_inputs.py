"""Inputs of the sink: the advisory lock, the functions by which the sink reports, and facts about the brokers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from cdcd.adapters.kafka.checkpoint import OnIgnored, say_nothing
from cdcd.adapters.kafka.outage import Settling
from cdcd.adapters.kafka.oversized import SizeLimits
from cdcd.core.errors import CdcdError


@dataclass(frozen=True, slots=True)
class Ownership:
    """The advisory lock, as the sink needs it.

    Attributes:
        prove: called before fencing. Raises an exception if this instance does not hold the advisory lock now.
        lapsed: returns True if the last proof of ownership is older than the lease.
    """

    prove: Callable[[], None]
    lapsed: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class SinkReports:
    """The functions by which the sink reports.

    Attributes:
        on_retry: called for each failure after which the sink tries again, with the seconds until then.
        on_ended: called with the offset of a hanging transaction that the sink has ended in the checkpoint topic.
        on_ignored: called with the records of the checkpoint topic that do not count, if there are any.
    """

    on_retry: Callable[[CdcdError, float], None]
    on_ended: Callable[[int], None] = lambda _offset: None
    on_ignored: OnIgnored = say_nothing


@dataclass(frozen=True, slots=True)
class KnownOfBrokers:
    """What a process has learned of the brokers. All of its sinks share these objects.

    Attributes:
        sizes: sizes that brokers have refused.
        settling: delay of the end of a transaction after an outage.
        topics: topics that sessions of this process have created or checked.
    """

    sizes: SizeLimits = field(default_factory=SizeLimits)
    settling: Settling = field(default_factory=Settling)
    topics: set[str] = field(default_factory=set)
