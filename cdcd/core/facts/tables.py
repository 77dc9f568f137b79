"""Facts about single tables: their topics, their place in the publication, their partitions, their fates."""

from typing import ClassVar

from cdcd.core.facts import Fact, Level, fact


@fact
class TopicCreated(Fact):
    """cdcd created a topic."""

    event: ClassVar[str] = "topic.created"
    topic: str


@fact
class TopicLost(Fact):
    """The topic of a table had records and was deleted, so cdcd created it again. It has only the changes from now on.

    `command` reads the table's rows into it.
    """

    event: ClassVar[str] = "topic.lost"
    level: ClassVar[Level] = "warning"
    topic: str
    table: str
    command: str


@fact
class PartitionsAdded(Fact):
    """Somebody added partitions to a topic. Within minutes, producers send most keys to other partitions than before.
    So the records of one row lie in two partitions, between which there is no order. cdcd looks every 30 seconds while
    it runs (topics.on_added_partitions).
    """

    event: ClassVar[str] = "topic.partitions"
    level: ClassVar[Level] = "warning"
    topic: str
    before: int
    partitions: int
    hint: str


@fact
class TableHealed(Fact):
    """After a gap, the table's topic was compared with the table, and got these numbers of records, so that it equals
    the table at the new slot's first position.
    """

    event: ClassVar[str] = "table.healed"
    table: str
    deletes: int
    updates: int
    inserts: int


@fact
class TableNotHealed(Fact):
    """After a gap, the table's topic cannot be compared with the table for certain. A truncate record ends the former
    rows instead, and the table is read again, unless the reason says that it is not read.
    """

    event: ClassVar[str] = "table.unhealed"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str


@fact
class GapHealed(Fact):
    """The topics of `tables` tables were compared with the tables after a gap, and got these numbers of records. The
    stream begins when the other tables are read.
    """

    event: ClassVar[str] = "gap.healed"
    tables: int
    deletes: int
    updates: int
    inserts: int
    seconds: float


@fact
class TableReplaced(Fact):
    """Another table has taken the name of a published one. Its changes go to the same topic.

    Or a table was renamed, and `former_oid` is its own oid. The records of its former name are in another topic, or in
    none (`tables.exclude`).

    `truncated`: a truncate record ended the rows that the topic had. `read`: the table's rows are read.
    """

    event: ClassVar[str] = "table.replaced"
    level: ClassVar[Level] = "warning"
    table: str
    former_oid: int
    oid: int
    truncated: bool
    read: bool


@fact
class TableAdded(Fact):
    """A table was added to the publication, maybe again, or was renamed and is not read by itself
    (`snapshot.mode: never`, `snapshot.exclude`). Its existing rows are delivered only if `read` is true.

    `rows` is an estimate of the existing rows by the server's statistics. `command` is the command that reads them.
    """

    event: ClassVar[str] = "table.added"
    table: str
    rows: int
    read: bool
    command: str


@fact
class PublicationChanged(Fact):
    """cdcd added tables to the publication or dropped tables from it (postgres.publication_changes).

    `added` and `dropped` name the first 10 tables; the counts are of all.
    """

    event: ClassVar[str] = "publication.changed"
    publication: str
    added: list[str]
    added_count: int
    dropped: list[str]
    dropped_count: int


@fact
class PublicationDiffers(Fact):
    """The publication lacks tables that the configuration names, or has tables that it does not name, and cdcd does not
    change that. PostgreSQL sends no changes of a table that the publication lacks.

    `lacking` and `extra` name the first 10 tables; the counts are of all. `reason` says why cdcd does not change the
    publication. `command` is for psql.
    """

    event: ClassVar[str] = "publication.differs"
    level: ClassVar[Level] = "warning"
    publication: str
    lacking: list[str]
    lacking_count: int
    extra: list[str]
    extra_count: int
    reason: str
    command: str


@fact
class PartitionAttached(Fact):
    """A partitioned table that is published as a whole got a partition. PostgreSQL sends nothing of the rows that the
    partition had before.

    `rows` is an estimate of its rows by the server's statistics; 1 if it has rows that the statistics have not counted,
    or if its size is not known because another session has locked it; 0 if it has none, or was created as a partition.
    `command` reads the table again; it is empty if `rows` is 0.
    """

    event: ClassVar[str] = "table.attached"
    table: str
    partition: str
    rows: int
    command: str


@fact
class PartitionDetached(Fact):
    """A partition of a table that is published as a whole was detached or dropped, also while cdcd was stopped.
    PostgreSQL sends nothing of that, so readers of the topic still have its rows. `cdcd tables stop` and `cdcd tables
    resume` of the table read it again, which snapshot.changed_partitions: read does by itself.
    """

    event: ClassVar[str] = "table.detached"
    level: ClassVar[Level] = "warning"
    table: str
    partition: str


@fact
class PartitionTruncated(Fact):
    """A partition of a table that is published as a whole was truncated by its own name. PostgreSQL sends nothing of
    that, so readers of the topic still have its rows. TRUNCATE of the partitioned table is sent. If the partition
    changed while cdcd was stopped, it may also have been rewritten with all rows (VACUUM FULL, CLUSTER), which cdcd
    cannot tell apart. `cdcd tables stop` and `cdcd tables resume` of the table read it again, which
    snapshot.changed_partitions: read does by itself.
    """

    event: ClassVar[str] = "table.truncated"
    level: ClassVar[Level] = "warning"
    table: str
    partition: str


@fact
class PartitionsUnremembered(Fact):
    """These tables that are published as a whole have more partitions than the checkpoint can hold (about 20,000 of all
    tables together). cdcd notices partitions that change while it runs, but not those that change while it is stopped.
    After such a change, `cdcd tables stop` and `cdcd tables resume` of the table read it again.
    """

    event: ClassVar[str] = "partitions.unremembered"
    level: ClassVar[Level] = "warning"
    tables: list[str]


@fact
class TypeDropped(Fact):
    """A column has a type that PostgreSQL's catalog does not know any more, because the type was dropped after the
    change was written. cdcd writes the column's values as text, arrays of it included.
    """

    event: ClassVar[str] = "type.dropped"
    level: ClassVar[Level] = "warning"
    table: str
    column: str
    type_oid: int


@fact
class TableSetAside(Fact):
    """A table is set aside because of a fault that belongs to it alone: from `lsn` on, its changes have no records. All
    other tables go on. Consumers of its topic must not take what they have for the table's present rows.

    `fault` is the kind of the fault, `reason` what happened, and `hint` what to do about it. `command` then lets the
    table come back: its former rows end, and it is read again. `by_itself`: cdcd also tries that by itself, after a
    while that is longer each time.
    """

    event: ClassVar[str] = "table.aside"
    level: ClassVar[Level] = "error"
    table: str
    oid: int
    topic: str
    fault: str
    lsn: str
    reason: str
    hint: str
    command: str
    by_itself: bool


@fact
class TableDeadLetters(Fact):
    """The schema registry refuses a schema of a table, so the records of the table go to `kafka.dead_letter_topic`, in
    JSON (`kafka.dead_letters`). The topic of the table lacks these records, also later.

    `reason` is the registry's answer, and `hint` says what to do about it. cdcd asks the registry again after ALTER
    TABLE and after a start. When the registry accepts the schema, read the table again: `cdcd snapshot start TABLE`.
    """

    event: ClassVar[str] = "table.refused"
    level: ClassVar[Level] = "error"
    table: str
    oid: int
    reason: str
    hint: str


@fact
class TableResumed(Fact):
    """A table that was set aside because of `fault` comes back: its former rows end, its rows are read again (`read`),
    and its changes of transactions that commit from `lsn` on have records. `attempt` counts how often it has come back.
    If the fault is still there, the table is set aside again.
    """

    event: ClassVar[str] = "table.returned"
    table: str
    oid: int
    fault: str
    lsn: str
    attempt: int
    read: bool


@fact
class TableLeft(Fact):
    """A table that was set aside because of `fault` was dropped, or is not published any more. So it is not set aside
    any more. Its topic keeps what it has. If the table is published again, its former rows end, and it is read.
    """

    event: ClassVar[str] = "table.left"
    table: str
    oid: int
    fault: str
    lsn: str


@fact
class RelationChanged(Fact):
    """A table changed: columns were `added` or `dropped` (each with its type), `renamed` (the new name by the former
    one) or `retyped` (`<former type> -> <new type>` by name). Or it has another `key`, name (`former_name`) or
    `replica_identity`. Its records have the new form from now on.
    """

    event: ClassVar[str] = "relation.changed"
    schema: str
    table: str
    added: list[str]
    dropped: list[str]
    renamed: dict[str, str]
    retyped: dict[str, str]
    key: list[str] | None
    former_name: str
    replica_identity: str

    def logged(self) -> dict[str, object]:
        """Only what changed."""
        found = {name: getattr(self, name) for name in self.fields_logged()}
        return {
            name: value for name, value in found.items() if value or (name == "key" and value is not None)
        }


@fact
class TablesLeftOut(Fact):
    """tables.include and tables.exclude leave out `count` of the published tables. `tables` has the first ten names.
    PostgreSQL sends their changes all the same.
    """

    event: ClassVar[str] = "tables.excluded"
    tables: list[str]
    count: int


@fact
class TablePatternUnmatched(Fact):
    """A pattern of tables.include or tables.exclude matches no published table, so it takes in or leaves out nothing.
    Compare it with the names in PostgreSQL: if a name is spelled wrong, the table's changes are in Kafka after all.
    """

    event: ClassVar[str] = "tables.unmatched"
    level: ClassVar[Level] = "warning"
    pattern: str
