"""Remove one key from a log and from the tables that are folded from it, with all former versions of them.

The rule: only a row that the source has no more is forgotten, and only after its delete was folded. So the table equals
the source before and after, and no later fold needs the records that are removed. The position of the table and the
offsets of the log are kept apart from the commits and records that go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from cdcd.core.errors import ConfigError, SourceError, TransientError
from cdcd.mirror.base.columns import DROPPED
from cdcd.mirror.base.formats import CHANGES, MADE_BY, STATES, BaseFormat, base_of
from cdcd.mirror.base.now import live
from cdcd.mirror.base.position import BASE
from cdcd.mirror.base.reading import LogTables
from cdcd.mirror.base.states import states_name
from cdcd.mirror.log import positions
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.platform.sql import condition, quoted, text
from cdcd.mirror.platform.tables import exists, properties
from cdcd.mirror.records.changes import key_of
from cdcd.mirror.records.rule import try_cast
from cdcd.mirror.records.values import ValueForm, key_bytes, key_json
from cdcd.mirror.targets.target import Kind
from cdcd.mirror.watching.progress import first_lines

_ATTEMPTS: Final = 5
"""Maximum number of attempts at a statement, while others commit to the log."""

CHANGES_FOLDER: Final = "_change_data"
"""The folder of a Delta table with the files of its change data feed."""

_PLACE: Final = ("topic_id", "part", "off")


@dataclass(frozen=True, slots=True)
class Found:
    """The records of the log that name a key.

    Attributes:
        topic: of the table.
        records: records with the key, by `_PLACE`.
        references: other records, whose headers name the key as the former or the later key of their row.
        other_keys: keys that the row had before or afterwards, as JSON.
        unreadable: number of records of the topic in quarantine that may be of any key. They stay.
        states: number of rows with the key in the table of states and in the changelog.
        others: other tables that may have the key and stay as they are, in SQL.
    """

    topic: str
    records: Sequence[Row]
    references: Sequence[Row]
    other_keys: tuple[str, ...]
    unreadable: int
    states: int = 0
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proof:
    """The rows and files of the log, or of a table, that may still have a key.

    Attributes:
        name: in SQL.
        rows: number of rows with the key.
        files: number of data files.
        strange: number of data files in the folder that no version has, such as those of a killed process, and of files
            with former changes (Delta's change data feed).
        former: number of former data files whose least and greatest values the metadata of the version still has.
    """

    name: str
    rows: int
    files: int
    strange: int
    former: int = 0


class Forgetting:
    """The removal of one key. Call `look` first, and `remove` with its result.

    Args:
        tables: where the table and the log are.
        table: `schema.table`, of the source.
        key: values of the key's columns as text, by column.

    Raises:
        SourceError: the table is not described, or has no key.
        ConfigError: `key` names other columns than the key has, or a value does not fit the column's type.
    """

    def __init__(self, tables: LogTables, table: str, key: Mapping[str, str]) -> None:
        self._tables = tables
        self._spark = tables.spark
        self._table = table
        self._place, forms = tables.located(table)
        schema = forms.newest(self._place.topic).schema
        if not schema.key:
            raise SourceError(
                f"{table} has no key, so its rows cannot be named.",
                hint="Delete the rows from the log and from the changelog by statements of your own, and expire former "
                "versions of both.",
            )
        if set(key) != set(schema.key):
            raise ConfigError(
                f"The key of {table} has the columns {', '.join(schema.key)}.",
                hint=f"Give a value for each of them: {' '.join(f'{name}=VALUE' for name in schema.key)}",
            )
        typed = [
            try_cast(sf.lit(key[name]), schema.column(name).spark).alias(f"v{number}")
            for number, name in enumerate(schema.key)
        ]
        values = self._spark.range(1).select(*typed).collect()[0]
        for name, value in zip(schema.key, values, strict=True):
            if value is None:
                raise ConfigError(
                    f"The value given for {name} is no {schema.column(name).type}.",
                    hint=f"Write it as Spark casts it to {schema.column(name).spark.simpleString()}.",
                )
        self._literals = {
            name: f"CAST('{text(key[name])}' AS {schema.column(name).spark.simpleString()})"
            for name in schema.key
        }
        self._key = dict(zip(schema.key, values, strict=True))
        self._columns = {column.name for column in schema.columns}
        self._states = states_name(tables.target, schema)
        self._changelog = tables.target.name_of(schema, Kind.CHANGELOG)
        self._forms = [form for form in forms.all(self._place.topic).values() if form is not None]

    def look(self) -> Found:
        """Return the records of the log that name the key.

        Raises:
            SourceError: the source still has the row.
            TransientError: the delete of the row is not folded yet.
            The errors of `LogTables.now`.
        """
        if self._rows_of(self._tables.now(self._table)):
            raise SourceError(
                f"{self._table}: the source has a row with this key, and a mirror keeps the rows of its source.",
                hint="Delete the row in PostgreSQL, run cdcd mirror --once, and then this command again.",
            )
        if exists(self._spark, self._place.name) and self._rows_of(live(self._spark.table(self._place.name))):
            raise TransientError(
                f"{self._table}: the log has the delete of the row, and the table does not have it yet.",
                hint="Run cdcd mirror --once, and then this command again.",
            )
        log, is_it = self._log(), self._names("key")
        values = self._forms[-1].values
        keys = [_key(name, values).alias(name) for name in ("oldkey", "newkey")]
        records = log.filter(is_it).select(*_PLACE, *keys).collect()
        named = self._names("oldkey") | self._names("newkey")
        references = log.filter(~is_it & named).select(*_PLACE, _key("key", values).alias("key")).collect()
        others = [each for row in records for each in (row["oldkey"], row["newkey"])]
        others += [row["key"] for row in references]
        folded = self._folded()
        kept = [name for name in folded if name != self._place.name]
        return Found(
            self._place.topic,
            records,
            references,
            tuple(sorted({each for each in others if each is not None})),
            log.filter((sf.col("kind") == "unreadable") & ~is_it).count(),
            sum(map(self._kept_rows, kept)),
            tuple([name for name in (self._changelog,) if exists(self._spark, name) and name not in folded]),
        )

    def _folded(self) -> list[str]:
        """The table, its table of states, and its changelog, as far as folds made such tables."""
        spark, names = self._spark, [self._place.name, self._states, self._changelog]
        return [
            name
            for name, kind in zip(names, (BASE, STATES, CHANGES), strict=True)
            if exists(spark, name) and properties(spark, name).get(MADE_BY) == kind
        ]

    def remove(self, found: Found) -> list[Proof]:
        """Remove the key, and return the rows and files that may still have it. No mirror may write meanwhile.

        Raises:
            ConfigError: a tag or a branch keeps former versions.
            TransientError: others committed to the log at the same time, several times.
        """
        spark, log = self._spark, self._place.log
        format_ = base_of(self._tables.target.format)
        names = [log, *self._folded()]
        for name in names:
            format_.check_versions(spark, name)
        has = positions.read(spark, log)
        # The log knows its offsets by its records. Without this row, the records that go would be read again.
        place = LogPlace(log, self._tables.target.format, "")
        positions.save(spark, place, has, replace(has.summary, number=has.summary.number + 1))
        self._change(f"DELETE FROM {log} WHERE", found.records)
        self._change(f"UPDATE {log} SET oldkey = NULL, newkey = NULL WHERE", found.references)
        for name in names[1:]:
            # The table itself has the row only if it marks deletes.
            spark.sql(f"DELETE FROM {name} WHERE {self._condition(name)}")
        for name in names:
            format_.rewrite(spark, name)
        for name in names[1:]:
            there = format_.version(spark, name)
            if there.position is not None:
                format_.keep(spark, name, there.pin, there.position)
        for name in names:
            format_.drop_versions(spark, name)
        log_rows = (
            self._log().filter(self._names("key") | self._names("oldkey") | self._names("newkey")).count()
        )
        counts = [log_rows, *map(self._kept_rows, names[1:])]
        return [self._proof(format_, name, rows) for name, rows in zip(names, counts, strict=True)]

    def _proof(self, format_: BaseFormat, name: str, rows: int) -> Proof:
        folder, files = format_.files(self._spark, name)
        there = self._data_files(folder) | self._data_files(f"{folder}/{CHANGES_FOLDER}")
        return Proof(name, rows, len(there), len(there - files), format_.former_files(self._spark, name))

    def _data_files(self, folder: str) -> set[str]:
        """The names of the data files below a folder. Spark skips folders within it whose names begin with `_`."""
        files = (
            self._spark.read.format("binaryFile")
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", "*.{parquet,orc,avro}")
        )
        try:
            # Spark looks for the folder at once.
            paths = [row["path"] for row in files.load(folder).select("path").collect()]
        except AnalysisException as error:
            if condition(error) != "PATH_NOT_FOUND":
                raise
            return set()
        return {path.rpartition("/")[2] for path in paths if "/metadata/" not in path}

    def _log(self) -> DataFrame:
        """Return the records of the topic in the log."""
        return self._spark.table(self._place.log).filter(
            (sf.col("topic") == self._place.topic) & sf.col("day").isNotNull()
        )

    def _names(self, column: str) -> Column:
        """Return the condition that a column of the log has the key as JSON, in any form of the table. Never NULL."""
        found = []
        for form in self._forms:
            if set(self._key) <= set(form.schema.key):
                parsed = key_of(_key(column, form.values), form.schema, form.rules)
                found.append(
                    reduce(and_, [parsed[name] == sf.lit(value) for name, value in self._key.items()])
                )
        return sf.coalesce(reduce(or_, found), sf.lit(False))

    def _rows_of(self, rows: DataFrame) -> int:
        of_key = [sf.col(quoted(name)) == sf.lit(value) for name, value in self._key.items()]
        return int(rows.filter(reduce(and_, of_key)).count())

    def _condition(self, name: str) -> str:
        kept = [each for each in self._spark.table(name).columns if each not in self._columns]
        return rows_of_key(kept, self._literals)

    def _kept_rows(self, name: str) -> int:
        return int(self._spark.table(name).filter(self._condition(name)).count())

    def _change(self, statement: str, records: Sequence[Row]) -> None:
        """Run a statement for records of the log. It is repeated if another commit came first."""
        if not records:
            return
        parts: dict[tuple[str, int], list[str]] = {}
        for row in records:
            parts.setdefault((row["topic_id"], row["part"]), []).append(str(row["off"]))
        places = [
            f"(topic_id = '{text(topic_id)}' AND part = {part} AND off IN ({', '.join(offsets)}))"
            for (topic_id, part), offsets in sorted(parts.items())
        ]
        where = f"topic = '{text(self._place.topic)}' AND ({' OR '.join(places)})"
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._spark.sql(f"{statement} {where}")
                return
            except Exception as error:  # formats raise classes of Java, of which PySpark knows a part
                if attempt == _ATTEMPTS:
                    raise TransientError(
                        f"The log {self._place.log} could not be changed: {first_lines(error)}",
                        hint="Stop the mirror, and run the command again.",
                    ) from error


def _key(column: str, form: ValueForm) -> Column:
    """The JSON of a key in a column of the log."""
    data = sf.col(column)
    return key_json(data if column == "key" else key_bytes(data), form)


def rows_of_key(columns: Sequence[str], literals: Mapping[str, str]) -> str:
    """Return the condition of SQL for the rows of a key in a table, also in columns that the key had before.

    Args:
        columns: names of the table's columns that the source does not have.
        literals: value in SQL by column of the key.
    """
    found = []
    for column, literal in literals.items():
        former = [each for each in columns if DROPPED.search(each) and DROPPED.sub("", each) == column]
        same = [f"{quoted(column)} = {literal}"]
        same += [f"CAST({quoted(each)} AS string) = CAST({literal} AS string)" for each in former]
        found.append(f"({' OR '.join(same)})")
    return " AND ".join(found)
