"""A table as it is, as it was at a common LSN, and what it says of itself."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import PositionError
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.session import check_classic
from cdcd.mirror.targets.known import KnownTables
from cdcd.mirror.targets.making import (
    KIND,
    SCHEMA,
    SWAPPED,
    made,
)
from cdcd.mirror.targets.pinned import CONTROL, listed_point
from cdcd.mirror.targets.state import State
from cdcd.mirror.targets.table_format import TableFormat
from cdcd.mirror.targets.target import Inspected, Newest


class Reading:
    """Reads tables, and changes none."""

    def __init__(self, format_: TableFormat, known: KnownTables) -> None:
        self._format = format_
        self._known = known

    def inspect(self, spark: SparkSession, name: str) -> Inspected | None:
        properties = self._format.properties(spark, name)
        if SCHEMA not in properties or KIND not in properties:
            return None
        state, at = None, None
        for commit in self._format.commits(spark, name):
            if state is not None and commit.state.partitions != state.partitions:
                break
            # Commits that change no row carry the state on: the oldest one with these places brought the changes.
            state, at = state or commit.state, commit.at
        new = made(properties)
        if state is None:
            self._known.check_whole(spark, name, new.schema.table)
        files, metadata = self._format.files(spark, name), self._format.metadata(spark, name)
        return Inspected(name, new.schema, new.kind, state, at, files, new.layout, metadata)

    def newest(self, spark: SparkSession, name: str) -> Newest | None:
        if not self._format.exists(spark, name):
            return None
        while True:
            version, properties = self._format.current(spark, name), self._format.properties(spark, name)
            commit = next(self._format.commits(spark, name), None)
            # All of it is of one moment, unless somebody made a commit between the looks.
            same_form = self._format.properties(spark, name).get(SCHEMA) == properties.get(SCHEMA)
            if same_form and self._format.current(spark, name) == version:
                break
        try:
            new = made(properties)
        except (KeyError, ValueError) as error:
            raise PositionError(
                f"The table {name} is there, but was not made by this program: it lacks the property {SCHEMA}.",
                hint="Name the catalog, namespace or path of the mirror.",
            ) from error
        if commit is None:
            self._known.check_whole(spark, name, new.schema.table)
        state = State() if commit is None else commit.state
        # What somebody else committed after the mirror's own is what readers see.
        rows = spark.table(name) if version is None else self._format.version(spark, name, version)
        return Newest(new.schema, new.kind, state, rows)

    def read(self, spark: SparkSession, name: str, consistent_lsn: int | None = None) -> DataFrame:
        if consistent_lsn is None:
            return spark.table(name)
        version = self._listed_version(spark, name, consistent_lsn)
        if version is not None:
            return self._format.version(spark, name, version)
        for commit in self._format.commits(spark, name):
            reached = commit.state.consistent_lsn
            if reached is not None and reached <= consistent_lsn:
                return self._format.version(spark, name, commit.version)
        if self._format.is_whole(spark, name) and SWAPPED not in self._format.properties(spark, name):
            return spark.table(name).filter(sf.lit(False))
        raise PositionError(
            f"{name} has no version from LSN {consistent_lsn} or before any more.",
            hint="Former versions are kept as long as maintenance.keep says; choose a later LSN.",
        )

    def _listed_version(self, spark: SparkSession, name: str, commit_lsn: int) -> int | None:
        """The version that a point lists. None: the point was made by a former version, or before the table was there.

        Raises:
            PositionError: the table is not as of that point.
        """
        check_classic(spark, f"Reading {name} as of an LSN")
        control = self._format.own_name(CONTROL)
        point = listed_point(spark, control, commit_lsn) if self._format.exists(spark, control) else None
        if point is None:
            return None
        version: int | None = point["versions"].get(self._format.bare_name(name))
        if version is not None:
            return version
        # A table that is folded from a log has no state of its own.
        is_folded = self._format.exists(spark, name) and SCHEMA not in self._format.properties(spark, name)
        table = None if is_folded else self._known.look(spark, name)
        if is_folded or (table is not None and table.schema.table in point["without"]):
            raise PositionError(
                f"{name} is not as of LSN {Lsn(commit_lsn)}: the table was stopped then, was read again later, or had "
                "no row yet.",
                hint="Choose an LSN whose row in cdcd.consistent does not have the table in `without`.",
            )
        return None
