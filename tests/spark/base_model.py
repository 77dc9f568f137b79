"""A log as the append query writes it, filled by the model of a source (`source_model.Source`) instead of by Kafka."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType

from cdcd.core.records.schemas import read_form
from cdcd.mirror.base.commit import Folded
from cdcd.mirror.base.fold import fold
from cdcd.mirror.base.formats import BaseFormat, DeltaBase, IcebergBase, Version
from cdcd.mirror.base.part import Place
from cdcd.mirror.base.position import NO_VERSION, Carried
from cdcd.mirror.jars import DELTA
from cdcd.mirror.log.table import COLUMNS, LogPlace, create
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.types import rules, table_schema
from tests.integration.daemon import until
from tests.spark.source_model import Source

TOPIC = "shop.public.docs"


def form_of(
    fingerprint: str,
    *columns: tuple[str, int, str],
    oid: int = 16384,
    key: Sequence[str] = ("id",),
    **more: Any,
) -> Form:
    """The form of a table `docs`. A column is (name, attnum, form)."""
    oids = {"int64": 20, "int32": 23, "text": 25}
    described = {
        "schema": "public", "table": "docs", "topic": TOPIC, "oid": oid, "key": list(key), "last_id": 9, "rewritten": 0,
        "fingerprint": fingerprint,
        "columns": [
            {"name": name, "id": number, "type": form, "type_oid": oids[form], "modifier": -1, "form": form,
             "default": more.get(name)}
            for name, number, form in columns
        ],
    }  # fmt: skip
    _, form = read_form(json.dumps(described).encode())
    return Form(table_schema(fingerprint, form, mirrored=True), rules(form, mirrored=True))


WAITS_S = 600.0
"""Seconds that a fold waits in a phase at most."""

DOCS = (("id", 1, "int64"), ("n", 2, "int32"), ("title", 3, "text"), ("body", 4, "text"))


class Slow:
    """A format whose fold stops once in one phase of its statement until somebody else has acted.

    - pinned: the version was read, and no statement was made.
    - altered: a column was changed, and no row.
    - analysed: the statement is planned, and its guard is evaluated.
    - running: the rows of the statement's source are read, after the guard.
    - committed: the statement has ended, and the driver has not looked at the table since.

    Args:
        column: some column of the statement's source.
    """

    def __init__(
        self,
        spark: SparkSession,
        inner: BaseFormat,
        phase: str,
        folder: Path,
        *,
        column: str = "_cdcd_commit_lsn",
    ) -> None:
        self.spark, self.inner, self.phase, self.waits = spark, inner, phase, True
        self.column = column
        self.there, self.go = folder / f"{phase}-there", folder / f"{phase}-go"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def wait(self, phase: str) -> None:
        if self.phase == phase and self.waits:
            self.waits = False
            self.there.touch()
            until(lambda: True if self.go.exists() else None, "told to go on", WAITS_S)

    def version(self, spark: SparkSession, name: str) -> Version:
        found = self.inner.version(spark, name)
        self.wait("pinned")
        return found

    def alter(self, spark: SparkSession, name: str, change: str) -> None:
        self.inner.alter(spark, name, change)
        self.wait("altered")

    @contextmanager
    def carrying(self, spark: SparkSession, name: str, carried: Carried) -> Iterator[str]:
        with self.inner.carrying(spark, name, carried) as to:
            yield to
        self.wait("committed")

    def guard(self, name: str, pin: str) -> str:
        there, go, most = str(self.there), str(self.go), WAITS_S

        def waits(_: Any) -> bool:
            import os
            import time
            from pathlib import Path

            try:
                # One task waits. If each of them did, those who act in between would get no core.
                with Path(there).open("x") as file:
                    file.write(str(os.getpid()))
            except FileExistsError:
                return True
            end = time.monotonic() + most
            while not Path(go).exists() and time.monotonic() < end:
                time.sleep(0.02)
            return True

        guard = self.inner.guard(name, pin)
        if self.phase not in {"analysed", "running"}:
            return guard
        self.spark.udf.register("cdcd_waits", waits, BooleanType())
        if self.phase == "analysed" and guard != "true":
            return guard.replace("WHERE name", "WHERE cdcd_waits(name) AND name")
        return f"{guard} AND cdcd_waits({self.column})"


class Lake:
    """One log and one base table."""

    def __init__(self, spark: SparkSession, folder: str, name: str, table_format: str) -> None:
        self.spark = spark
        is_delta = table_format == DELTA
        self.format: BaseFormat = DeltaBase() if is_delta else IcebergBase()
        self.log = f"delta.`{folder}/log`" if is_delta else f"lake.{name}.log"
        self.table = f"delta.`{folder}/docs`" if is_delta else f"lake.{name}.docs"
        self.table_format = table_format
        self.forms = {
            "form-1": form_of("form-1", *DOCS),
            "form-2": form_of("form-2", *DOCS, ("note", 5, "text")),
        }
        self._written = [0, 0, 0]
        create(spark, LogPlace(self.log, table_format, ""), 3600)

    def write(self, source: Source, form: str = "form-1") -> None:
        """Append to the log what the source has written since, in this form. Columns of the form stay NULL."""
        rows = []
        for number, records in enumerate(source.log):
            rows += [as_row(record | {"schema_id": form}) for record in records[self._written[number] :]]
            self._written[number] = len(records)
        self.append(rows)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.append_frame(self.frame(rows).coalesce(1))

    def frame(self, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
        types = ", ".join(f"`{column}` {type_}" for column, type_ in COLUMNS.items())
        return self.spark.createDataFrame([tuple([row.get(c) for c in COLUMNS]) for row in rows], types)

    def append_frame(self, frame: DataFrame) -> None:
        if self.table_format == DELTA:
            frame.write.format("delta").mode("append").insertInto(self.log)
        else:
            frame.writeTo(self.log).append()

    def fold(self, bound: int, *, spark: SparkSession | None = None, **more: Any) -> Folded:
        return fold(spark or self.spark, self.format, self.place(**more), self.described, bound)

    def place(self, **more: Any) -> Place:
        return Place("public.docs", TOPIC, self.table, self.log, **more)

    def described(self, ids: Collection[str]) -> Mapping[str, Form]:
        return {id_: self.forms[id_] for id_ in ids if id_ in self.forms}

    def rows(self, version: str = NO_VERSION) -> set[tuple[Any, ...]]:
        """The rows of the table, or of a version of it."""
        of = f"VERSION AS OF {version}" if version else ""
        rows = self.spark.sql(f"SELECT id, n, title, body FROM {self.table} {of}").collect()
        assert len(rows) == len({row["id"] for row in rows}), "a key is there twice"
        return {tuple(row) for row in rows}


def as_row(
    record: Mapping[str, Any], names: Collection[str] = ("id", "n", "title", "body")
) -> dict[str, Any]:
    """A record of the model as a row of the log."""

    def row(values: Any) -> dict[str, Any] | None:
        return None if values is None else dict(zip(names, values, strict=True))

    where = {
        "schema": "public", "table": "docs", "commit_lsn": record["commit_lsn"],
        "event_serial_no": record["event_no"], "schema_id": record["schema_id"], "ts_us": 1_700_000_000_000_000,
    }  # fmt: skip
    value = {
        "before": row(record["before"]),
        "after": row(record["after"]),
        "source": where,
        "op": record["op"],
    }
    return {
        "topic": TOPIC, "part": record["partition"], "off": record["offset"], "topic_id": "T", "tbl": "public.docs",
        "schema_id": record["schema_id"], "lsn": record["commit_lsn"], "ord": record["event_no"], "op": record["op"],
        "key": None if record["key"] is None else bytearray(json.dumps({"id": record["key"][0]}).encode()),
        "unchanged": _text(record.get("unchanged")), "oldkey": _key(record.get("old_key")),
        "newkey": _key(record.get("new_key")), "kind": "truncate" if record["op"] == "t" else "change",
        "value": bytearray(json.dumps(value).encode()),
    }  # fmt: skip


def _text(values: Any) -> str | None:
    return None if values is None else json.dumps(values)


def _key(key: Any) -> str | None:
    return None if key is None else json.dumps({"id": key[0]})


def expected(source: Source, lsn: int) -> set[tuple[Any, ...]]:
    """The rows of the source as of an LSN."""
    then = max([at for at in source.after if at <= lsn], default=0)
    return {(row["id"], row["n"], row["title"], row["body"]) for row in source.after.get(then, {}).values()}


def bounds(source: Source) -> Iterator[int]:
    """The LSNs of the source's commits, in their order."""
    yield from sorted(source.after)
