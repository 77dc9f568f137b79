"""The inputs of a start: settings, rules, choices of the operator, and the hints of its errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from cdcd.core.catalog.money import DIGITS_OF_C
from cdcd.core.catalog.oids import Oids
from cdcd.core.catalog.routing import TopicNames
from cdcd.core.engine.checkpoint import AsideTable, Checkpoint, RecordSettings
from cdcd.core.engine.leavings import FirstStart
from cdcd.core.engine.logged import LoggedSession
from cdcd.core.engine.session_start import ExportedTables
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.engine.startup_positions import FirstFlush, Step, first_flush
from cdcd.core.protocol.versions import Options
from cdcd.core.snapshot.beginning import (
    end_former_rows,
    first_tables,
    healable,
    without_conditions,
)
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.table_task import TableTask


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """The stream that a session asks for, from the section `postgres`.

    Attributes:
        slot, publication: names.
        protocol, streaming, two_phase, origin: arguments of `versions.start_options`.
        failover: standbys get a copy of the slot.
    """

    slot: str
    publication: str
    protocol: int | Literal["auto"] = "auto"
    streaming: Literal["auto", "off", "on", "parallel"] = "auto"
    two_phase: bool = False
    origin: Literal["any", "none"] = "any"
    failover: bool = False


@dataclass(frozen=True, slots=True)
class StartSettings:
    """The part of the configuration that the start depends on.

    Attributes:
        name, checkpoint_topic: names.
        stream: slot, publication, and what is asked of the server, as the section `postgres` says.
        snapshot: as the section `snapshot` says.
        messages: whether the server is asked for logical messages.
        delivers_messages: whether logical messages have records, even if the configuration does not ask for them.
            None: only if the checkpoint was written by a version that delivered them by default.
        publishes_messages: whether some logical messages are events of the outbox.
        counts_epochs: whether checkpoints count epochs, because Kafka does not fence writers (`delivery:
            at_least_once`).
        topics: the names of the pipeline's topics.
        records: the settings that decide how rows become records; None if they are not compared.
        authenticates: whether the checkpoint has tags, because the pipeline has a key for it.
        protects: whether rules protect columns.
        truncate: whether TRUNCATE makes a record.
        sets_aside: whether a fault of a table sets the table aside instead of ending the start.
    """

    stream: ReplicationSettings
    checkpoint_topic: str
    topics: TopicNames
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    messages: bool = True
    delivers_messages: bool | None = True
    publishes_messages: bool = False
    counts_epochs: bool = False
    name: str = ""
    records: RecordSettings | None = None
    authenticates: bool = False
    protects: bool = False
    truncate: bool = True
    sets_aside: bool = False


HEALED_ROWS_HINT: Final = (
    "Nothing needs to be done. The topic of each table is compared with the table, and gets a record for each "
    "difference: deletes, updates and inserts. Where a topic cannot be compared, a truncate record ends the former "
    "rows, and the table is read again. Changes that were undone or overwritten since the slot was lost have no "
    "records."
)
"""Hint about the effect of `snapshot.lost_slot: heal`; `cdcd check` shows it too."""

LEFT_ROWS_HINT: Final = (
    "Rows that were deleted since the slot was lost stay in the topics, because topics.truncate or "
    "topics.skipped_operations leaves out truncate records. When the tables are read, `cdcd verify` names these rows, "
    "and `cdcd mirror --snapshot` replaces the table of a mirror."
)
"""Hint about rows that `snapshot.mode: when_needed` cannot end without truncate records; `cdcd check` shows it too."""

ENDED_ROWS_HINT: Final = (
    "Nothing needs to be done. In the topic of each table that is read again, a truncate record ends the former rows "
    "before the new ones, so rows that were deleted since the slot was lost disappear, too. Changes that were undone "
    "or "
    "overwritten since then have no records."
)
"""Hint about the effect of `snapshot.mode: when_needed`; `cdcd check` shows it too."""

HEALED_OR_LEFT_HINT: Final = (
    "The topic of each table is compared with the table, and gets a record for each difference: deletes, updates and "
    "inserts. Where a topic cannot be compared (the event table.unhealed), the table is read again, and rows that were "
    "deleted since the slot was lost stay in the topic, because topics.truncate, topics.skipped_operations or "
    "event_flattening leaves out truncate records. `cdcd mirror --snapshot` replaces the table of a mirror."
)
"""`HEALED_ROWS_HINT` without truncate records."""


def gap_hint(*, heals: bool, truncate: bool) -> str:
    """Return what a start does about rows from before a gap; `cdcd check` shows it too."""
    if heals:
        return HEALED_ROWS_HINT if truncate else HEALED_OR_LEFT_HINT
    return ENDED_ROWS_HINT if truncate else LEFT_ROWS_HINT


TABLES_NAMED: Final = 20
"""Maximum number of tables that the event names of those that are read again after a gap."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What the session begins with.

    Attributes:
        checkpoint: the checkpoint from which the session resumes.
        published: the published tables as `schema.table`, by oid.
        exported: the tables at the slot's snapshot, which are read before replication starts; None if it starts at
            once.
        options: options of START_REPLICATION.
        flushed: the position that PostgreSQL is told first.
        slot_confirmed: the confirmed position of the slot.
        logged: the logged session that is delivered instead of the stream; None for the stream.
        money_digits: number of decimal digits of money.
        delivers_messages: whether logical messages have records, even if the configuration does not ask for them.
    """

    checkpoint: Checkpoint
    published: Mapping[int, str]
    exported: ExportedTables | None
    options: Options
    flushed: int
    slot_confirmed: int
    logged: LoggedSession | None = None
    money_digits: int = DIGITS_OF_C
    delivers_messages: bool = True


Tables = Mapping[int, str]
"""Published tables as `schema.table`, by oid."""

WithoutConditions = Callable[[Progress, bool], tuple[Progress, Sequence[TableTask]]]

EndFormerRows = Callable[[Progress, Progress, Tables, tuple[str, ...]], Progress]

Healable = Callable[[Progress, Tables], Oids]

FirstTables = Callable[[Tables, Tables, Tables | None], tuple[Tables, Tables]]


@dataclass(frozen=True, slots=True)
class FormerSessions:
    """What former sessions of this process found out, and the next one needs.

    Attributes:
        flushed: the position that was confirmed to PostgreSQL.
        unstreamed_until: streaming is off until the commit at this LSN is delivered; 0 if streaming is as configured.
        binary: whether values are sent in binary form.
        converts: whether PostgreSQL converts the texts of the stream to UTF-8.
        lapsed: server processes that held the lock for this process when the lease ran out.
        aside: tables that the last session has set aside and that are not in a checkpoint yet.
    """

    flushed: int = 0
    unstreamed_until: int = 0
    binary: bool = False
    converts: bool = True
    lapsed: frozenset[int] = frozenset()
    aside: tuple[AsideTable, ...] = ()


@dataclass(frozen=True, slots=True)
class GapChoice:
    """What the operator's command says about a gap.

    Attributes:
        is_accepted: whether to start although changes between checkpoint and slot are lost.
        heals_now: whether the topics are healed although the slot could be used (`cdcd heal`).
    """

    is_accepted: bool = False
    heals_now: bool = False


NO_FORMER_SESSIONS: Final = FormerSessions()

NO_CHOICE: Final = GapChoice()


@dataclass(frozen=True, slots=True)
class StartRules:
    """The decisions of a start. A planted bug of the simulator replaces one of them.

    Attributes:
        steps: the steps in their order; None: `STEPS`.
        first_tables, without_conditions, end_former_rows, healable: the functions of `beginning` with these names.
        first_flush: the function of `startup_positions`.
        first: how far a start that creates a slot has got.
    """

    steps: "tuple[Callable[[Any], Step], ...] | None" = None
    first_tables: FirstTables = first_tables
    without_conditions: WithoutConditions = without_conditions
    end_former_rows: EndFormerRows = end_former_rows
    healable: Healable = healable
    first: Callable[[], FirstStart] = FirstStart
    first_flush: FirstFlush = first_flush


ORDINARY_RULES: Final = StartRules()
