"""A real Debezium and cdcd on one WAL, with the same settings, record by record: `python -m tests.debezium.beside`.

One worker of Kafka Connect runs a connector for each variant of `capture_modes.py`, on the changes of that module. Each
slot is copied before. `cdcd adopt` makes a configuration of each connector, and `cdcd run` reads the copy of its slot,
to topics of the same names on a broker of its own. Key, value, schema and headers of each record must be the same, but
for the lists with reasons: `DIFFERENCES` and `DIFFERENT` by type and value, `FIELDS` (`comparing.py`) by name.

cdcd then reads the same WAL in Avro, in Protobuf and as CloudEvents. Google's runtime, fastavro, Java's Avro and the
CNCF's SDK must read the values that JSON has. For this, the tables of `tests/altered_tables.py` are altered in all
their ways, with rows between.

    python -m tests.debezium.beside [--variants adaptive isostring …] [--formats avro protobuf cloudevents]
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Raw, Reader
from deploy.local import KafkaBroker, PostgresServer
from deploy.local.cache import REPOSITORY
from tests.altered_tables import CASES, LIVE, Altered, created
from tests.bench.debezium import VERSION, connector_config, start_connectors
from tests.debezium import java_avro
from tests.debezium.capture import settings
from tests.debezium.capture_modes import MODE_CHANGES, MODE_SETUP, VARIANTS, read, sent_texts
from tests.debezium.comparing import Compared, Comparing, Records, is_altered, print_compared
from tests.debezium.formats import FORMATS, compare_formats, compare_java, reading
from tests.integration.daemon import Daemon
from tests.schema_registry import SchemaRegistry
from tests.scratch import scratch_folder

LIMIT_S: Final = 300.0
QUIET_S: Final = 3.0
"""Debezium has written everything if it has as many records as cdcd, and wrote no more for so many seconds."""


def alter(server: PostgresServer) -> None:
    """Each of the altered tables gets rows, and goes through all its steps."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        altered = Altered(connection, LIVE)
        for name, case in CASES.items():
            for _ in range(3):
                altered.insert(name)
            for number in range(len(case.steps)):
                altered.step(name, number)
            altered.delete(name)


def slot_of(variant: str, reader: str) -> str:
    """The slot by which a reader has the changes."""
    return f"{reader}_{list(VARIANTS).index(variant)}"


def connector_settings(variant: str) -> dict[str, str]:
    """What the connector of a variant is told beside what is the same for all."""
    return {
        **settings(),
        "topic.prefix": variant,
        "slot.name": slot_of(variant, "debezium"),
        **VARIANTS[variant],
    }


def adopted(
    name: str, options: Mapping[str, str], server: PostgresServer, broker: KafkaBroker, folder: Path
) -> dict[str, Any]:
    """The configuration that `cdcd adopt` writes for a connector. The publication that it asks for is made."""
    source, written = folder / f"{name}.json", folder / f"{name}.yaml"
    source.write_text(json.dumps({"name": name, "config": options}))
    command = [sys.executable, "-m", "cdcd.cli", "adopt", str(source), "--output", str(written)]
    done = subprocess.run(
        [*command, "--kafka", broker.bootstrap_servers, "--format", "json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    publication = json.loads(done.stdout)["publication"]
    if publication is not None:
        server.execute(publication["statement"])
    found: dict[str, Any] = yaml.safe_load(written.read_text())
    return found


def records(config: Mapping[str, Any], dsn: str, folder: Path, topics: str = "") -> list[Raw]:
    """What a run with this configuration writes until its slot has confirmed everything, but for its own topics.

    Args:
        topics: prefix of the topics that are read; "": the prefix of the configuration.
    """
    with Daemon(folder / config["name"], {**config, "http": {"port": 0}}) as daemon:
        daemon.start()
        daemon.await_streaming()
        try:
            await_flushed(dsn, config["postgres"]["slot"], LIMIT_S)
        except TimeoutError as error:
            raise AssertionError(daemon.last_words()) from error
        assert daemon.stop() == 0, daemon.last_words()
    with Reader(config["kafka"]["bootstrap_servers"], topics or config["topics"]["prefix"]) as reader:
        return list(reader.read_all(LIMIT_S))


def parsed(raws: list[Raw]) -> Records:
    found: Records = {}
    for raw in raws:
        found.setdefault(raw.topic, []).append(
            {
                "key": None if raw.key is None else json.loads(raw.key),
                "value": None if raw.value is None else json.loads(raw.value),
                "headers": {name: (data or b"").decode() for name, data in raw.headers},
            }
        )
    return found


def run(variants: Sequence[str], formats: Sequence[str], folder: Path) -> dict[str, Compared]:
    """The comparisons, by variant and format."""
    found: dict[str, Compared] = {}
    more = {"max_replication_slots": "80", "max_wal_senders": "80"}
    with (
        PostgresServer(18, folder / "postgres", settings=more) as server,
        KafkaBroker(folder / "kafka") as theirs,
        KafkaBroker(folder / "kafka-cdcd") as ours,
        SchemaRegistry() as registry,
    ):
        for statement in (*MODE_SETUP, *(created(LIVE, CASES) if formats else ())):
            server.execute(statement)
        readers = ["debezium", "cdcd", *formats]
        for slot in (slot_of(variant, reader) for variant in variants for reader in readers):
            server.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        configs = {
            variant: adopted(
                variant, connector_config(server, connector_settings(variant)), server, ours, folder
            )
            for variant in variants
        }
        for statement in MODE_CHANGES:
            server.execute(statement)
        if formats:
            alter(server)
        sent = sent_texts(server)
        in_json: dict[str, list[Raw]] = {}
        for variant, config in configs.items():
            config["postgres"]["slot"] = slot_of(variant, "cdcd")
            in_json[variant] = records(config, server.dsn(), folder)
            # Flattened records are JSON.
            for form in formats if "transforms" not in VARIANTS[variant] else ():
                other = in_form(config, form, slot_of(variant, form), registry.url)
                in_format = records(other, server.dsn(), folder)
                read_form = reading(form, registry)
                found[f"{variant}, {form}"] = compare_formats(in_json[variant], in_format, read_form)
                if form == "avro" and java_avro.has_compiler():
                    found[f"{variant}, {form} in Java"] = compare_java(in_format, registry)
        least = Counter(raw.topic for raws in in_json.values() for raw in raws if not is_altered(raw.topic))
        each = {variant: connector_settings(variant) for variant in variants}
        worker = start_connectors(folder, "worker", server, theirs, each)
        try:
            captured = read(theirs, worker, variants, least, QUIET_S)
        finally:
            worker.kill()
        for variant, raws in in_json.items():
            found[variant] = Comparing(variant, sent).compare(captured[variant], parsed(raws))
    return found


def in_form(config: Mapping[str, Any], form: str, slot: str, url: str) -> dict[str, Any]:
    """The configuration with another format, as a pipeline of its own."""
    return {
        **config,
        "name": f"{config['name']}_{form}",
        "postgres": {**config["postgres"], "slot": slot},
        "topics": {**config["topics"], "prefix": f"{config['topics']['prefix']}-{form}"},
        "format": {**config["format"], "key": "json" if form == "cloudevents" else form, "value": form},
        "registry": {"url": url},
    }


def main() -> int:
    """0 if nothing is different but what the lists name."""
    parser = argparse.ArgumentParser(prog="python -m tests.debezium.beside")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--formats", nargs="*", choices=FORMATS, default=list(FORMATS))
    options = parser.parse_args()
    with scratch_folder("debezium") as folder:
        found = run(options.variants, options.formats, folder)
    print(f"Debezium {VERSION}, PostgreSQL 18, on one WAL")
    if not java_avro.has_compiler():
        print("NOT TESTED Java's Avro: it needs a JDK (Debian: default-jdk-headless)")
    for name, compared in found.items():
        print_compared(name, compared)
    return 1 if any(compared.wrong for compared in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
