"""Tables that Spark reads from databases in other encodings, and with money of other currencies."""

import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Final

import psycopg
import pytest
from pyspark.sql import SparkSession

from cdcd.spark import SnapshotSource, open_snapshot, read_snapshot
from deploy.local import PostgresServer
from tests.attacks.test_writer_encodings import as_sql, encoded
from tests.locales import locale_folder

ODD: Final[dict[str, dict[bytes, str | None]]] = {
    "SQL_ASCII": {b"\xc3\xa4": "ä", b"\xe9": None},
    "EUC_KR": {b"\xb0\xa1": "가", b"\xc9\xa1": None},
}
"""Values of a text column by encoding, with their text in UTF-8. None: the value has no form in UTF-8."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server with the locale ja_JP, whose currency has no decimals."""
    with tempfile.TemporaryDirectory(prefix="cdcd-encodings-") as folder:
        Path(folder).chmod(0o755)
        found = PostgresServer(
            18, Path(folder) / "postgres", environment={"LOCPATH": str(locale_folder("ja_JP"))}
        )
        try:
            found.start()
            yield found
        finally:
            found.kill()


@pytest.mark.parametrize("encoding", list(ODD))
def test_spark_reads_what_the_daemon_reads(
    server: PostgresServer, spark: SparkSession, encoding: str
) -> None:
    name = f"spark_{encoding.lower()}"
    with encoded(server, name, encoding) as dsn:
        with psycopg.connect(dsn, autocommit=True, client_encoding="SQL_ASCII") as sql:
            sql.execute(f"ALTER DATABASE {name} SET lc_monetary = 'ja_JP.UTF-8'".encode())
        with psycopg.connect(dsn, autocommit=True, client_encoding="SQL_ASCII") as sql:
            sql.execute(
                b"CREATE TABLE t (id int PRIMARY KEY, note text, doc jsonb, price money, prices money[])"
            )
            sql.execute(b"CREATE PUBLICATION p FOR ALL TABLES")
            sql.execute(b"SELECT pg_create_logical_replication_slot(current_database()::text, 'pgoutput')")
            for number, value in enumerate(ODD[encoding]):
                document = as_sql(b'{"k": "' + value + b'"}')
                values = f"{number}, {as_sql(value)}, {document}, 1234568::money, ARRAY[(-7)::money]"
                sql.execute(f"INSERT INTO t VALUES ({values})".encode())
        with open_snapshot(spark, SnapshotSource(dsn, "p", name, "shop"), ["public.t"]) as snapshot:
            found = {row["id"]: row for row in read_snapshot(spark, snapshot, "public.t").collect()}
    assert len(found) == len(ODD[encoding])
    for number, text in enumerate(ODD[encoding].values()):
        row = found[number]
        assert row["note"] == text
        assert row["doc"] == (None if text is None else f'{{"k": "{text}"}}')
        assert row["price"] == Decimal(1234568)
        assert row["prices"] == [Decimal(-7)]
