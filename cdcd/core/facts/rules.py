"""Facts about values and rules: what a format or a rule of the configuration cannot do with a table's rows."""

from typing import ClassVar

from cdcd.core.facts import Fact, Level, fact


@fact
class ValueUnwritable(Fact):
    """A row has a legal value for which format and modes have no form. Null stands for the value in the record (in a
    column of the key, what docs/records.md says), and the record's header `cdcd.unwritable` names the column. The event
    comes once a minute for a column. `left_out` is how many more values there were since the last such event.
    """

    event: ClassVar[str] = "value.unwritable"
    level: ClassVar[Level] = "warning"
    table: str
    column: str
    lsn: str
    reason: str
    left_out: int
    hint: str


@fact
class EventRefused(Fact):
    """An event of the outbox could not be published. A logical message (no `table`) is in topics.message, unless it is
    larger than outbox.message_bytes_max; a row is in the topic of its table. Correct what `reason` names, and send the
    event again. `left_out` is how many more were refused since the last such report.
    """

    event: ClassVar[str] = "outbox.refused"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str
    lsn: str
    left_out: int


@fact
class FilterFailed(Fact):
    """A filter (filters.tables) has no answer for a row, or for any row of the table, as `reason` says. What becomes of
    such rows, the filter's on_error says; a row that is updated or deleted is taken for one that the topic has. Correct
    the filter's expression: `row.x != null && row.x > 5` where a column can be NULL. `left_out` is how many more rows
    were without an answer since the last such report.
    """

    event: ClassVar[str] = "filter.failed"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str
    lsn: str
    left_out: int


@fact
class RouteFailed(Fact):
    """A rule of routes.tables has no answer for a row, or for any row of the table, as `reason` says. Where such rows
    go, the on_error of the table's routes says. Correct the rule's expression: `row.x != null && row.x > 5` where a
    column can be NULL. `left_out` is how many more rows were without an answer since the last such report.
    """

    event: ClassVar[str] = "route.failed"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str
    lsn: str
    left_out: int


@fact
class FieldFailed(Fact):
    """A computed field (fields.tables, computed) has no value for a row, as `reason` says, and is null in its record.
    Correct the field's expression: `row.x == null ? null : double(row.x)` where a column can be NULL. `left_out` is how
    many more rows were without a value since the last such report.
    """

    event: ClassVar[str] = "fields.failed"
    level: ClassVar[Level] = "warning"
    table: str
    reason: str
    lsn: str
    left_out: int


@fact
class FlatteningCollision(Fact):
    """A table has a column with the name of a field that event_flattening adds. Its flattened records have the column
    and leave the added field out. Choose another name: `event_flattening.add_fields_prefix`, or `<field>:<name>`.
    """

    event: ClassVar[str] = "flattening.collision"
    level: ClassVar[Level] = "warning"
    table: str
    fields: str
    topic: str


@fact
class ColumnRuleUnmatched(Fact):
    """A rule of `columns` matches no column of a published table, so it protects nothing. Compare the pattern with the
    names in PostgreSQL: a name that is spelled wrong leaves the values in clear.
    """

    event: ClassVar[str] = "columns.unmatched"
    level: ClassVar[Level] = "warning"
    rule: str


@fact
class FilterUnmatched(Fact):
    """A filter of `filters.tables` matches no published table, so it filters nothing. Compare the pattern with the
    names in PostgreSQL: if a name is spelled wrong, the topic of the table has all of its rows.
    """

    event: ClassVar[str] = "filters.unmatched"
    level: ClassVar[Level] = "warning"
    table: str


@fact
class RoutesUnmatched(Fact):
    """A pattern of `routes.tables` matches no published table, so its rules route nothing. Compare the pattern with the
    names in PostgreSQL: if a name is spelled wrong, all rows of the table go to its own topic.
    """

    event: ClassVar[str] = "routes.unmatched"
    level: ClassVar[Level] = "warning"
    table: str


@fact
class KeyRuleUnmatched(Fact):
    """A pattern of key.columns matches no published table. Compare it with the names in PostgreSQL."""

    event: ClassVar[str] = "key.unmatched"
    level: ClassVar[Level] = "warning"
    rule: str


@fact
class KeyRepeats(Fact):
    """Several rows of a table may have the same key, as key.columns chooses it. No snapshot beside the stream reads the
    table, and `cdcd mirror` and `cdcd verify` leave it out.
    """

    event: ClassVar[str] = "key.repeats"
    level: ClassVar[Level] = "warning"
    table: str


@fact
class PartitionRuleUnmatched(Fact):
    """A pattern of partitioner.columns matches no published table. Compare it with the names in PostgreSQL."""

    event: ClassVar[str] = "partitioner.unmatched"
    level: ClassVar[Level] = "warning"
    rule: str


@fact
class RowsMove(Fact):
    """Columns that are not of the key choose the partitions of a table (partitioner.columns). Records of one key may
    lie in several partitions, and `cdcd mirror` and `cdcd verify` leave the table out. docs/partitions.md says what
    consumers have to do.
    """

    event: ClassVar[str] = "partitioner.moves"
    level: ClassVar[Level] = "warning"
    table: str


@fact
class FieldRuleUnmatched(Fact):
    """A pattern of fields.tables matches no published table, or no table that it matches has a column that it renames.
    Compare the names with those in PostgreSQL. Columns that are not there are not renamed.
    """

    event: ClassVar[str] = "fields.unmatched"
    level: ClassVar[Level] = "warning"
    reason: str


@fact
class OutboxUnpublished(Fact):
    """The publication does not have a table of outbox.tables, so that no row of it is an event. Add the table to the
    publication, or compare the name with the one in PostgreSQL.
    """

    event: ClassVar[str] = "outbox.unpublished"
    level: ClassVar[Level] = "warning"
    table: str
