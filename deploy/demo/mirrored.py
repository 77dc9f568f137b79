"""The mirror of a pipeline: `cdcd mirror` run as the process that it is, and its tables held against the source's.

Both sides make one text of each row, in which a value looks the same whichever side wrote it, and tell the number of
rows and the sum of the texts' digests. Neither sends its rows to the other.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import yaml
from psycopg import sql

from deploy.local.cache import REPOSITORY, cache_folder
from deploy.local.programs import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdcd.mirror.targets.target import Target

Say = Callable[[str], None]

_DIGEST: Final = 15
"""Hexadecimal digits of a row's MD5 that count: what a bigint has room for."""

# By the beginning of the type's name (format_type): how PostgreSQL and Spark write the value as the same text.
_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "timestamp": (
        "round(extract(epoch FROM {0}) * 1000000)::bigint::text",
        "cast(unix_micros(cast({0} AS timestamp)) AS string)",
    ),
    "date": ("({0} - date '1970-01-01')::text", "cast(unix_date({0}) AS string)"),
    "time without": ("round(extract(epoch FROM {0}) * 1000000)::bigint::text", "cast({0} AS string)"),
    "interval": (
        (
            "CASE WHEN {0} IS NOT NULL THEN format('P%sY%sM%sDT%sH%sM%sS', extract(year FROM {0}),"
            " extract(month FROM {0}), extract(day FROM {0}),"
            " extract(hour FROM {0}), extract(minute FROM {0}), trim_scale(extract(second FROM {0})::numeric)) END"
        ),
        "cast({0} AS string)",
    ),
    "bytea": ("encode({0}, 'hex')", "lower(hex({0}))"),
    "numeric": ("nullif({0}, 'NaN')::text", "nullif(cast({0} AS string), 'NaN')"),
}
_ARRAY: Final = ("array_to_json({0})::text", "to_json({0})")
_OTHER: Final = ("{0}::text", "cast({0} AS string)")


@dataclass(frozen=True, slots=True)
class Side:
    """A table as one side has it."""

    rows: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A table as both have it."""

    table: str
    source: Side
    mirror: Side

    @property
    def equal(self) -> bool:
        return self.source == self.mirror

    def __str__(self) -> str:
        if self.equal:
            return f"{self.table}: {self.source.rows} rows on both sides, checksum {self.source.checksum:x}: equal"
        return f"{self.table}: source {self.source}, mirror {self.mirror}: NOT EQUAL"


class MirrorProcess:
    """`cdcd mirror` with one configuration; one process after the other.

    Args:
        folder: gets the configuration, the tables and the output.
        sections: laid over the configuration, section by section.

    Attributes:
        variables: environment variables of the next process, added to the variables of this process.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        bootstrap_servers: str,
        table_format: str = "iceberg",
        **sections: Mapping[str, Any],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.location = str(folder / table_format)
        self.format = table_format
        config: dict[str, Any] = {
            "name": name,
            "kafka": {"bootstrap_servers": bootstrap_servers},
            "target": {"format": table_format, "location": self.location},
            "batches": {"interval_s": 1},
            "http": {"port": 0},
        }
        for section, values in sections.items():
            config[section] = {**config.get(section, {}), **values}
        self.config = config
        self.path = folder / f"mirror-{table_format}.yaml"
        self.log_path = folder / f"mirror-{table_format}.log"
        self._process: subprocess.Popen[str] | None = None
        self.variables: Mapping[str, str] = {}

    def start(self, *arguments: str) -> None:
        """Returns at once; `arguments` come after `cdcd mirror --config FILE`."""
        self.path.write_text(yaml.safe_dump(self.config, sort_keys=False))
        command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-u", "-m", "cdcd.cli", "mirror"]
        with self.log_path.open("a") as errors:
            self._process = subprocess.Popen(
                [*command, "--config", str(self.path), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=REPOSITORY,
                env={**environment(), **self.variables},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the process, whose child is Java."""
        assert self._process is not None, "the mirror was never started"
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """What it says, as it comes, until it ends."""
        assert self._process is not None, "the mirror was never started"
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.rstrip()

    def wait(self, say: Say = lambda _: None) -> int:
        """The exit code, when it has ended; `say` gets its lines."""
        assert self._process is not None, "the mirror was never started"
        for line in self.lines():
            say(line)
        return self._process.wait()

    def once(self, *arguments: str, say: Say = lambda _: None) -> int:
        """Mirror what is there. The exit code."""
        self.start("--once", *arguments)
        try:
            return self.wait(say)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, to the process and its JVM."""
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def ask_to_stop(self) -> None:
        """Send SIGTERM and return at once."""
        assert self._process is not None, "the mirror was never started"
        self._process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """Send SIGTERM and wait. Return the exit code."""
        self.ask_to_stop()
        return self.wait()

    def errors(self) -> str:
        """What it said on standard error, in all its lives."""
        return self.log_path.read_text() if self.log_path.exists() else ""


def environment() -> dict[str, str]:
    """For a process with Spark in it: where jars are kept, and a Java that is new enough."""
    return {**os.environ, "CDCD_CACHE": str(cache_folder()), "JAVA_HOME": str(java().resolve().parents[1])}


@contextmanager
def reading(table_format: str, location: str) -> "Iterator[tuple[SparkSession, Target]]":
    """A Spark that reads the mirror's tables; one at a time in a process."""
    from cdcd.mirror.session import catalog_conf, session  # noqa: PLC0415  pyspark is not everywhere
    from cdcd.mirror.targets.delta import DeltaTarget  # noqa: PLC0415
    from cdcd.mirror.targets.iceberg import IcebergTarget  # noqa: PLC0415

    os.environ.update(environment())
    with _hushed(Path(location).parent / "reader.log"):
        spark = session(
            (table_format,), conf=catalog_conf(table_format, "lake", location), kafka=False, name="reader"
        )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark, IcebergTarget("lake") if table_format == "iceberg" else DeltaTarget(location)
    finally:
        spark.stop()


@contextmanager
def _hushed(log: Path) -> Iterator[None]:
    """Standard error goes to a file, also that of a JVM that is started meanwhile: it has much to say of itself."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def compare(dsn: str, spark: "SparkSession", target: "Target", tables: Sequence[str]) -> list[Verdict]:
    """Each of `tables` (`schema.table`, with a key), which nobody may write to meanwhile, as both sides have it."""
    with psycopg.connect(
        dsn, autocommit=True, options="-c timezone=UTC -c intervalstyle=iso_8601"
    ) as connection:
        return [_compare(connection, spark, target, table) for table in tables]


def _compare(connection: psycopg.Connection, spark: "SparkSession", target: "Target", table: str) -> Verdict:
    from cdcd.mirror.records.schema import TableSchema  # noqa: PLC0415
    from cdcd.mirror.targets.target import Kind  # noqa: PLC0415

    schema, _, name = table.partition(".")
    columns = connection.execute(
        """SELECT attname::text, format_type(atttypid, -1) FROM pg_attribute
            WHERE attrelid = format('%%I.%%I', %s::text, %s::text)::regclass AND attnum > 0 AND NOT attisdropped
              AND attgenerated = '' ORDER BY attname COLLATE "C" """,
        (schema, name),
    ).fetchall()
    texts = [(column, *_texts(kind)) for column, kind in columns]
    ours = sql.SQL(" || '|' || ").join(
        [
            sql.SQL("coalesce({}, '~')").format(
                sql.SQL(text.format(sql.Identifier(column).as_string(connection)))
            )
            for column, text, _ in texts
        ]
    )
    query = sql.SQL(
        "SELECT count(*), coalesce(sum(('x0' || substr(md5({}), 1, {}))::bit(64)::bigint), 0) FROM {}"
    ).format(ours, sql.Literal(_DIGEST), sql.Identifier(schema, name))
    row = connection.execute(query).fetchone()
    assert row is not None
    mirror = target.name_of(TableSchema("", schema, name, "", ("",), ()), Kind.MIRROR)
    theirs = ", '|', ".join(f"coalesce({text.format(f'`{column}`')}, '~')" for column, _, text in texts)
    found = spark.sql(
        f"SELECT count(*), coalesce(sum(cast(conv(substr(md5(concat({theirs})), 1, {_DIGEST}), 16, 10)"  # noqa: S608
        f" AS decimal(38, 0))), 0) FROM {mirror}"
    ).first()
    assert found is not None
    return Verdict(table, Side(int(row[0]), int(row[1])), Side(int(found[0]), int(found[1])))


def _texts(kind: str) -> tuple[str, str]:
    if kind.endswith("[]"):
        return _ARRAY
    return next((texts for start, texts in _TEXTS.items() if kind.startswith(start)), _OTHER)
