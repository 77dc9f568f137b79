"""The part of the log that a fold reads: what is in it, whether it is complete, and its changes as rows.

The part is the rows of a table with `position < lsn <= bound`. It begins with the last truncate record, because no row
from before it stays. A part that lacks changes is an error, which names what was lost.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import SinkError, SourceError, TransientError
from cdcd.core.pasted import begin_again
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.encoder import (
    HEADER_CHANGE,
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    HEADER_UNCHANGED,
    HEADER_UNWRITABLE,
)
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.position import BASE, Position
from cdcd.mirror.base.shared import SharedRows
from cdcd.mirror.log.positions import Began, at_version, first_lsns
from cdcd.mirror.log.table import ADDED
from cdcd.mirror.records.changes import PROBLEM, parse
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.records.values import as_json
from cdcd.mirror.targets.layout import PLAIN, Layout
from cdcd.mirror.targets.reduction import UNFIT, Summary, prepared, summary
from cdcd.mirror.targets.reduction import reduced as reduce_changes

Forms = Callable[[Collection[str]], Mapping[str, Form]]
"""Gives the forms with these ids, as far as they are described."""

_HEADERS: Final = {
    HEADER_UNCHANGED: "unchanged",
    HEADER_OLD_KEY: "oldkey",
    HEADER_NEW_KEY: "newkey",
    HEADER_UNWRITABLE: "unwritable",
    HEADER_CHANGE: ADDED,
}
"""The column of the log by the name of the header that it has."""

LOOK_BACK: Final = 16
"""Number of offsets before a tombstone among which its delete is, because the daemon writes it right before."""


class OvertakenError(TransientError):
    """Others committed to the table during each attempt."""


class LacksChangesError(SinkError):
    """The log lacks changes of a table. The table can be read again from its database."""


@dataclass(frozen=True, slots=True)
class PartOfForm:
    """What the log has of one form of a table in a part.

    Attributes:
        schema_id: "" if the records name no form.
        first, last: (LSN, event number) of the first and the last record.
        truncate, cut: the same of the first and the last truncate. None: there is none.
    """

    schema_id: str
    count: int
    first: tuple[int, int]
    last: tuple[int, int]
    truncate: tuple[int, int] | None
    cut: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the log that a fold reads.

    Attributes:
        lower: the part has changes that committed after it.
        cut: (LSN, event number) of the truncate with which the part begins. Rows of the table from before it end. None:
            the part has no truncate.
        cut_at: partition and offset of that truncate.
        forms: what the part has of each form.
        topic_ids: Kafka's ids of the topic that the part was read from.
    """

    lower: int
    cut: tuple[int, int] | None = None
    cut_at: tuple[int, int] | None = None
    forms: tuple[PartOfForm, ...] = ()
    topic_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FromQuarantine:
    """Records of a topic in quarantine that are folded as changes.

    Attributes:
        rows: what the log will have of them.
        since: all of them committed after this LSN.
    """

    rows: DataFrame
    since: int


@dataclass(frozen=True, slots=True)
class Place:
    """What is folded where.

    Attributes:
        table: `schema.table` at the source.
        topic: the table's topic.
        name: of the base table, in SQL.
        log: name of the log, in SQL.
        log_version: version of the log that is read; "": the current version.
        log_begins: LSN up to which the log has removed rows of the topic; 0: it has all of them.
        began: where the log began to read the topic, if Kafka had removed records of it before. None: it had not.
        ends: by partition, an offset below which the log has all records of the topic, and none after the bound.
        former_name: name that the relation had before, so that its rows begin with a truncate. None: it had no other.
        layout: how the table keeps its rows.
        replay: records in quarantine that are folded too. None: there are none.
        is_compacted: Kafka compacts the topic, so that only the tombstone of a delete may be left.
        shared: rows of the log in memory, of this topic too. None: the log itself is read.
        described: the form of the newest description of the table. None: it is not asked for.
        made_by: value of the property `MADE_BY` of the table.
        state: as in `position.Carried`, of the table after the fold.
    """

    table: str
    topic: str
    name: str
    log: str
    log_version: str = ""
    log_begins: int = 0
    began: Began | None = None
    ends: Mapping[int, int] = field(default_factory=dict)
    former_name: str | None = None
    layout: Layout = PLAIN
    replay: FromQuarantine | None = field(default=None, compare=False)
    is_compacted: bool = False
    shared: SharedRows | None = field(default=None, compare=False)
    described: Form | None = field(default=None, compare=False)
    made_by: str = BASE
    state: str = ""


class LogReader:
    """Reads what the log has of one table.

    Args:
        forms: gives the forms of the table.
        bound: greatest LSN that is read.

    Attributes:
        bound: the same.
    """

    def __init__(self, spark: SparkSession, place: Place, forms: Forms, bound: int) -> None:
        self._spark = spark
        self._place = place
        self._forms = forms
        self.bound = bound

    def begin(self, position: Position) -> Position:
        """Return the position to fold from: the table's own position, or one below all records that come back.

        A lower position changes nothing about the offsets: the table still has all records below them.
        """
        replay = self._place.replay
        if replay is None or position.lsn <= replay.since:
            return position
        return replace(position, lsn=replay.since, clean=False)

    def part(
        self,
        position: Position,
        topic_id: str | None,
        *,
        whole: bool,
        from_truncate: bool = True,
        may_lack: bool = False,
    ) -> Part:
        """Return the part of the log that the fold must read. LacksChangesError: the log lacks some of its changes.

        Args:
            topic_id: Kafka's id of the topic whose records the table has. None: it has none.
            from_truncate: False: the part begins with its last truncate only if the log lacks changes before it.
            may_lack: the part begins where the log begins, if the log lacks changes.
        """
        place = self._place
        if position.reached > self.bound:
            raise OvertakenError(
                f"{place.table}: another writer folded {place.name} beyond the LSN that is known here to be complete.",
                hint="The next fold has a later bound.",
            )
        found = self._parts(max(position.lsn, place.log_begins))
        if place.is_compacted:
            self._check_tombstones(position, found.cut)
        is_short = not may_lack and (
            self._lacks_first(found, position, topic_id) or position.lsn < place.log_begins
        )
        if found.cut is not None and (from_truncate or is_short):
            # Nothing from before the last truncate is in the table afterwards.
            return self.from_cut(found.cut)
        if position.lsn < place.log_begins and not may_lack:
            lacks = (
                "its position is not known, and"
                if whole
                else f"it is folded up to LSN {Lsn(position.lsn)}, and"
            )
            raise LacksChangesError(
                f"{place.table}: {lacks} the log {place.log} lacks the table's changes up to LSN "
                f"{Lsn(place.log_begins)}.",
                hint=begin_again(place.table),
            )
        return found if from_truncate else replace(found, cut=None, cut_at=None)

    def from_cut(self, cut: tuple[int, int]) -> Part:
        """The part from the truncate at (LSN, event number) `cut` on."""
        return replace(self._parts(cut[0] - 1, cut), cut=cut)

    def _check_tombstones(self, position: Position, cut: tuple[int, int] | None) -> None:
        """Check that compaction has removed no delete which the table lacks.

        Args:
            cut: (LSN, event number) of the last truncate after the position. None: there is none.

        Raises:
            LacksChangesError: only the tombstone of a delete is left.
        """
        place = self._place
        log = at_version(self._spark, place.log, place.log_version).filter(sf.col("topic") == place.topic)
        since, is_known = position.ends, cut is None and bool(position.ends)
        if not is_known:
            after = Part(position.lsn) if cut is None else Part(cut[0] - 1, cut)
            firsts = self._rows(after).groupBy("part").agg(sf.min("off")).collect()
            since = {row[0]: row[1] for row in firsts}
        is_new = cut is not None or not position.lsn
        found = lone_tombstones(log, since, is_new=is_new, others=is_known).head()
        if found is None:
            return
        raise LacksChangesError(
            f"{place.table}: compaction has removed the delete that came before the tombstone at {place.topic}"
            f"[{found['part']}]@{found['off']}, so the log lacks a change of the table.",
            hint=f"First set cleanup.policy=delete of the topic {place.topic}, because a compacted topic refuses "
            f"truncate records. {begin_again(place.table)} Or keep the policy, set min.compaction.lag.ms, and run "
            "cdcd mirror with --snapshot and --source.",
        )

    def _lacks_first(self, found: Part, position: Position, topic_id: str | None) -> bool:
        """True if the table lacks records that Kafka had removed before the log began to read the topic, and a truncate
        of the part came after them. LacksChangesError: none did.
        """
        place = self._place
        if place.began is None:
            return False
        # Offsets of a former topic say nothing of this one.
        ends = position.ends if topic_id in {None, place.began.topic_id} else {}
        # A mirror without a log noted where it had read to.
        gone = place.began.after(ends, are_exact=position.is_former)
        if gone and not self._replaces(found, gone):
            part, first = min(gone.items())
            raise LacksChangesError(
                f"{place.table}: the log {place.log} has {place.topic} from offset {first} of partition {part} on, and "
                "the table lacks records before it.",
                hint=begin_again(place.table),
            )
        return bool(gone)

    def _replaces(self, part: Part, gone: Mapping[int, int]) -> bool:
        """True if the last truncate of the part came after all records that Kafka had removed before the log began.

        `gone`: by partition, the offset before which records are gone.
        """
        began = self._place.began
        if began is None or part.cut is None or part.cut_at is None:
            return False
        number, offset = part.cut_at
        if offset >= began.ends.get(number, 0):
            # Kafka got the truncate when these records were gone.
            return True
        log = at_version(self._spark, self._place.log, self._place.log_version)
        firsts = first_lsns(log, self._place.topic, began.topic_id, gone)
        return all(part_ in firsts and firsts[part_] < part.cut[0] for part_ in gone)

    def _rows(self, part: Part) -> DataFrame:
        """The rows of the log that are in the part: changes and truncates of the topic up to the bound."""
        shared = self._place.shared
        if shared is not None and shared.has(part.lower, self.bound):
            log = self._spark.table(shared.name)
        else:
            log = at_version(self._spark, self._place.log, self._place.log_version)
        if self._place.replay is not None:
            log = log.unionByName(self._place.replay.rows, allowMissingColumns=True)
        rows = log.filter(
            (sf.col("topic") == self._place.topic)
            & sf.col("kind").isin("change", "truncate")
            & (sf.col("lsn") > part.lower)
            & (sf.col("lsn") <= self.bound)
        )
        if part.cut is not None:
            lsn, event = part.cut
            rows = rows.filter((sf.col("lsn") > lsn) | (_event() >= event))
        return rows

    def check_topic(self, topic_ids: Collection[str]) -> None:
        if len(topic_ids) > 1:
            raise SinkError(
                f"{self._place.table}: the topic {self._place.topic} was deleted and made again, so changes may be "
                "missing between its former records and those of now.",
                hint=begin_again(self._place.table),
            )

    def _parts(self, lower: int, cut: tuple[int, int] | None = None) -> Part:
        """The part after `lower`, or from the truncate `cut` on. `Part.cut` is that of its last truncate."""
        at = sf.struct("lsn", _event().alias("ord"))
        truncate = sf.when(
            sf.col("kind") == "truncate", sf.struct("lsn", _event().alias("ord"), "part", "off")
        )
        rows = (
            self._rows(Part(lower, cut))
            .groupBy(sf.coalesce("schema_id", sf.lit("")).alias("id"))
            .agg(
                sf.count(sf.lit(1)).alias("count"),
                sf.min(at).alias("first"),
                sf.max(at).alias("last"),
                sf.min(truncate).alias("truncate"),
                sf.max(truncate).alias("cut"),
                sf.collect_set("topic_id").alias("topic_ids"),
            )
            .collect()
        )
        forms = tuple(
            [
                PartOfForm(
                    row["id"],
                    row["count"],
                    tuple(row["first"]),
                    tuple(row["last"]),
                    None if row["truncate"] is None else tuple(row["truncate"])[:2],
                    None if row["cut"] is None else tuple(row["cut"])[:2],
                )
                for row in rows
            ]
        )
        topic_ids = frozenset([topic_id for row in rows for topic_id in row["topic_ids"]])
        last = max([tuple(row["cut"]) for row in rows if row["cut"] is not None], default=None)
        cut_at = None if last is None else last[2:]
        return Part(lower, last_truncate(forms), cut_at, forms, topic_ids)

    def described(self, parts: Sequence[PartOfForm]) -> Mapping[str, Form]:
        ids = [part.schema_id for part in parts]
        found = self._forms([id_ for id_ in ids if id_])
        unknown = sorted(set(ids) - found.keys())
        if unknown:
            raise SourceError(
                f"{self._place.table}: no description of source.schema_id {', '.join(unknown) or 'NULL'} is known.",
                hint="Start the daemon again, which describes its tables. If other programs wrote records to the "
                f"topic, mark these records: UPDATE {self._place.log} SET kind = 'unreadable' WHERE topic = "
                f"'{self._place.topic}' AND "
                f"coalesce(schema_id, '') IN ({', '.join(repr(each) for each in unknown)})",
            )
        return found

    def records(self, part: Part) -> DataFrame:
        """The records of the part, as `records_of` gives them."""
        return records_of(self._rows(part))

    def changes(self, part: Part, path: Path) -> DataFrame:
        """The changes of the part, as changes of the last form."""
        records = self.records(part)
        found = []
        for number, form in enumerate(path.forms):
            mine = as_json(records.filter(sf.col("form") == form.schema.schema_id), form.values)
            parsed = parse(mine, form.schema, form.rules)
            parsed = parsed.withColumn(UNFIT, sf.col(PROBLEM).isNotNull()).drop(PROBLEM)
            found.append(path.upgraded(parsed, number))
        return prepared(reduce(DataFrame.unionByName, found))

    def reduced(self, changes: DataFrame, schema: TableSchema) -> tuple[DataFrame, Summary]:
        partial: frozenset[str] = frozenset()
        while True:
            rows = reduce_changes(changes, schema, partial, marks=self._place.layout.marks).persist()
            found = summary(rows, schema)
            if found.unfit:
                rows.unpersist()
                raise self.unfit(changes)
            if found.partial <= partial:
                return rows, found
            rows.unpersist()
            partial |= found.partial

    def unfit(self, changes: DataFrame) -> SinkError:
        """The error for changes that cannot be folded, with the first record and the reason."""
        first = (
            changes.filter(sf.col(UNFIT)).orderBy("partition", "offset").select("partition", "offset").head()
        )
        assert first is not None, "one was counted"
        place = f"topic = '{self._place.topic}' AND part = {first['partition']} AND off = {first['offset']}"
        return SinkError(
            f"{self._place.table}: the record at {self._place.topic}[{first['partition']}]@{first['offset']} cannot be "
            f"folded: {self._why(place)}.",
            hint="To continue without the record, mark it in the log: "
            f"UPDATE {self._place.log} SET kind = 'unreadable' WHERE {place}. If a program other than cdcd wrote the "
            "record, find that program.",
        )

    def _why(self, place: str) -> str:
        """Why the record at a place of the log cannot be folded."""
        log = at_version(self._spark, self._place.log, self._place.log_version)
        record = records_of(log.filter(place))
        for form in self._forms([row["form"] for row in record.select("form").collect()]).values():
            found = parse(as_json(record, form.values), form.schema, form.rules).select(PROBLEM).head()
            if found is not None and found[0] is not None:
                return str(found[0])
        return "it is not in the form that its schema_id names"


def records_of(rows: DataFrame) -> DataFrame:
    """Rows of the log as Spark's Kafka source gives records, with `form`, the id of their form."""
    headers = [
        sf.when(
            sf.col(column).isNotNull(),
            sf.struct(sf.lit(name).alias("key"), sf.col(column).cast("binary").alias("value")),
        )
        for name, column in _HEADERS.items()
        # A version of a log from before the column lacks the column.
        if column != ADDED or ADDED in rows.columns
    ]
    return rows.select(
        "key",
        "value",
        sf.filter(sf.array(*headers), lambda each: each.isNotNull()).alias("headers"),
        "topic",
        sf.col("part").alias("partition"),
        sf.col("off").alias("offset"),
        sf.col("ts").alias("timestamp"),
        sf.col("schema_id").alias("form"),
    )


def lone_tombstones(
    log: DataFrame, since: Mapping[int, int], *, is_new: bool, others: bool = True
) -> DataFrame:
    """Partition and offset of each tombstone that does not stand behind its delete.

    The daemon writes a delete, and right after it the tombstone with the same key. Unreadable records count as deletes,
    because the quarantine has them.

    Args:
        log: the rows of one topic.
        since: by partition, the offset from which tombstones count.
        is_new: no row of the table is older than these offsets, so a tombstone counts only if a change of its key came
            before it.
        others: whether the tombstones of other partitions count.
    """
    from_ = sf.coalesce(
        *[sf.when(sf.col("part") == part, sf.lit(off)) for part, off in since.items()],
        sf.lit(0 if others else None).cast("bigint"),
    )
    found = log.filter((sf.col("kind") == "tombstone") & (sf.col("off") >= from_)).alias("t")
    deletes = log.filter((sf.col("op") == "d") | (sf.col("kind") == "unreadable")).alias("d")
    same = (sf.col("t.part") == sf.col("d.part")) & (sf.col("t.key") == sf.col("d.key"))
    before = (sf.col("d.off") < sf.col("t.off")) & (sf.col("d.off") >= sf.col("t.off") - LOOK_BACK)
    found = found.join(deletes, same & before, "left_anti")
    if is_new:
        changes = log.filter((sf.col("kind") == "change") & (sf.col("off") >= from_)).alias("c")
        had = (sf.col("t.part") == sf.col("c.part")) & (sf.col("t.key") == sf.col("c.key"))
        found = found.join(changes, had & (sf.col("c.off") < sf.col("t.off")), "left_semi")
    return found.select("part", "off")


def _event() -> Column:
    return sf.coalesce(sf.col("ord"), sf.lit(0))


def last_truncate(forms: Sequence[PartOfForm]) -> tuple[int, int] | None:
    """(LSN, event number) of the last truncate of a part. None: there is none."""
    return max([form.cut for form in forms if form.cut is not None], default=None)
