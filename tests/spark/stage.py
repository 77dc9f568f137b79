"""A source with a daemon, and mirrors of it: what the tests and the figures of `cdcd mirror` have in common."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from cdcd.core.records.encoder import is_watermark
from cdcd.core.records.schemas import TableForm, read_form
from cdcd.mirror.jars import ICEBERG
from cdcd.mirror.session import catalog_conf
from cdcd.mirror.targets.delta import DeltaTarget
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.target import Target
from deploy.demo.mirrored import MirrorProcess
from deploy.demo.topics import Raw, Reader
from deploy.local import KafkaBroker, PostgresServer
from tests.integration.daemon import Daemon, configuration, confirmed, until, wal_end
from tests.integration.former import without_later_settings

VERSION: Final = 18
DELIVERED_S: Final = 300.0


class Stage:
    """One PostgreSQL, one broker; for each test a database with a daemon of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.postgres = PostgresServer(VERSION, folder / "postgres")
        self.broker = KafkaBroker(folder / "kafka")

    @classmethod
    @contextmanager
    def set_up(cls) -> "Iterator[Stage]":
        with ExitStack() as stack:
            # Not in pytest's folder, which is closed to others: as root, PostgreSQL runs as another user.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cdcd-stage-")))
            folder.chmod(0o755)
            stage = cls(folder)
            stack.callback(stage.postgres.kill)
            stage.postgres.start()
            stack.callback(stage.broker.kill)
            stage.broker.start()
            yield stage

    @contextmanager
    def source(
        self,
        name: str,
        *tables: str,
        partitions: int = 2,
        watermark_s: float = 0,
        former: Mapping[str, str] | None = None,
        **sections: Mapping[str, Any],
    ) -> "Iterator[Source]":
        """A database with these tables (or other statements), and a daemon that reads and streams from it.

        Args:
            watermark_s: the interval of watermarks in the topics of tables; 0: there are none.
            former: the environment of a daemon of the former version (`tests/integration/former.py`). None: the daemon
                is of this version.
            sections: laid over the daemon's configuration, section by section.
        """
        self.postgres.execute(f"CREATE DATABASE {name}")
        source = Source(
            name,
            self.postgres.dsn(name),
            self.broker.bootstrap_servers,
            self._folder / name,
            partitions,
            watermark_s=watermark_s,
            former=former,
            **sections,
        )
        with source.connect() as connection:
            for table in tables:
                connection.execute(table)
        try:
            source.daemon.start()
            source.daemon.await_streaming()
            if source.daemon.saw("snapshot.started"):
                # The stream begins before Kafka has the rows.
                source.daemon.await_event("snapshot.finished")
            yield source
        finally:
            for mirror in source.mirrors:
                mirror.kill()
            source.daemon.kill()


class Source:
    """A database, its daemon and its topics."""

    def __init__(
        self,
        name: str,
        dsn: str,
        servers: str,
        folder: Path,
        partitions: int,
        *,
        watermark_s: float = 0,
        former: Mapping[str, str] | None = None,
        **sections: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.dsn = dsn
        self.servers = servers
        self.folder = folder
        self.mirrors: list[MirrorProcess] = []
        self._config = configuration(
            name,
            dsn,
            servers,
            topics={"create": {"partitions": partitions}},
            heartbeat={"watermark_interval_s": watermark_s},
            # What the tables hold before the first change comes as rows that were read.
            snapshot={"mode": "initial"},
            **sections,
        )
        self.daemon = self.daemon_of(former)

    def daemon_of(self, former: Mapping[str, str] | None) -> Daemon:
        """A daemon of this version, or of the former version with its environment. The caller starts the daemon."""
        config = self._config if former is None else without_later_settings(self._config)
        return Daemon(self.folder, config, environment=former)

    def connect(self) -> "psycopg.Connection[tuple[Any, ...]]":
        return psycopg.connect(self.dsn, autocommit=True)

    def execute(self, statement: str, *values: object) -> None:
        with self.connect() as connection:
            connection.execute(statement, values or None)

    def deliver(self) -> None:
        """Returns when all that is committed is in the topics."""
        end = wal_end(self.dsn)
        slot = f"cdcd_{self.name}"
        until(lambda: True if confirmed(self.dsn, slot) >= end else None, "delivered", DELIVERED_S)

    def mirror(
        self, table_format: str, *, change_log: str = "fold", **sections: Mapping[str, Any]
    ) -> MirrorProcess:
        mirror = MirrorProcess(self.folder / "mirror", self.name, self.servers, table_format, **sections)
        mirror.config["change_log"] = change_log
        self.mirrors.append(mirror)
        return mirror

    def records(self, table: str) -> list[Raw]:
        """What is in a table's topic, but for watermarks."""
        with Reader(self.servers, self.name) as reader:
            found = [record for record in reader.read_all() if record.topic == f"{self.name}.{table}"]
        return [record for record in found if not is_watermark(record.value, record.headers)]

    def descriptions(self, table: str) -> list[TableForm]:
        """What the schemas topic says of `schema.table`, the newest last."""
        forms = [read_form(record.value or b"")[1] for record in self.topic("schemas")]
        return [form for form in forms if f"{form.schema}.{form.table}" == table]

    def topic(self, name: str) -> list[Raw]:
        """What is in another topic of the pipeline."""
        with Reader(self.servers, self.name) as reader:
            reader._leave_out = frozenset()
            return [record for record in reader.read_all() if record.topic == f"{self.name}.{name}"]

    def produce_to(self, name: str, key: bytes, value: bytes) -> None:
        """Write to another topic of the pipeline behind the daemon's back."""
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(f"{self.name}.{name}", value, key)
        assert producer.flush(30) == 0

    def produce(self, table: str, *values: bytes | None, partition: int = 0) -> None:
        """Write to a table's topic behind the daemon's back."""
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(f"{self.name}.{table}", value, b"{}", partition=partition)
        assert producer.flush(30) == 0

    def shorten(self, table: str, ends: Mapping[int, int]) -> None:
        """Delete the records of the table's topic before these offsets, by partition."""
        topic = f"{self.name}.{table}"
        admin = AdminClient({"bootstrap.servers": self.servers})
        places = [TopicPartition(topic, part, end) for part, end in ends.items()]
        for deleted in admin.delete_records(places).values():
            deleted.result()

    def delete_topics(self, *tables: str) -> None:
        """Delete the topics of these tables. The daemon must be stopped, because it would make them again at once."""
        topics = [f"{self.name}.public.{table}" for table in tables]
        admin = AdminClient({"bootstrap.servers": self.servers})
        for deleted in admin.delete_topics(topics).values():
            deleted.result()
        until(lambda: True if not {*topics} & {*admin.list_topics(timeout=10).topics} else None, "deleted")

    def repeat(self, table: str) -> int:
        """Write all of a table's records once more, as they are; how many."""
        producer = Producer({"bootstrap.servers": self.servers})
        records = self.records(table)
        for record in records:
            producer.produce(
                record.topic,
                record.value,
                record.key,
                partition=record.partition,
                headers=list(record.headers),
            )
        assert producer.flush(30) == 0
        return len(records)


def target_for(spark: SparkSession, mirror: MirrorProcess, catalog: str) -> Target:
    """The tables of a mirror as another Spark sees them, under a catalog's name of its own."""
    if mirror.format != ICEBERG:
        return DeltaTarget(mirror.location)
    for name, value in catalog_conf(ICEBERG, catalog, mirror.location).items():
        spark.conf.set(name, value)
    return IcebergTarget(catalog)


def change(record: Raw) -> dict[str, Any]:
    """The JSON of a record."""
    value: dict[str, Any] = json.loads(record.value or b"null")
    return value
