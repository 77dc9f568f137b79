"""The context of transactions, from a real server to the headers of the records."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from deploy.local.cache import REPOSITORY
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.test_deploy_sql import psql
from tests.schema_registry import SchemaRegistry

StartDaemon = Callable[[dict[str, Any]], Daemon]

TOKEN: Final = "a token of the test"
TRACE: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def installed(database: Database, folder: Path) -> str:
    """Install deploy/sql/context.sql with `TOKEN`; return the file that holds the token."""
    file = folder / "context-token"
    file.write_text(TOKEN + "\n")
    psql(database, (REPOSITORY / "deploy/sql/context.sql").read_text(), token_file=str(file))
    return str(file)


def actors(broker: KafkaBroker, prefix: str) -> dict[bytes, list[str | None]]:
    """The actor that the records of each key name, in the order of the records."""
    found: dict[bytes, list[str | None]] = {}
    with Reader(broker.bootstrap_servers, prefix) as reader:
        for each in reader.read_all():
            actor = dict(each.headers).get("cdcd.context.actor")
            found.setdefault(each.key or b"", []).append(None if actor is None else actor.decode())
    return found


def key(number: int) -> bytes:
    return b'{"id":%d}' % number


@pytest.mark.postgres(only=[14, 18])
def test_each_record_names_the_actor_of_its_transaction_whatever_is_killed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, tmp_path: Path
):
    # GIVEN a daemon that cuts transactions into small parts, and the function that adds the token
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    two_phase = database.version >= 15
    process = daemon(
        configuration(
            unique,
            database.dsn(options="-c logical_decoding_work_mem=64kB"),
            broker.bootstrap_servers,
            postgres={"two_phase": two_phase},
            kafka={"transaction": {"records_max": 50, "whole_bytes_max": 0}},
            context={"enabled": True, "token_file": installed(database, tmp_path)},
        )
    )
    process.await_streaming()

    def says(actor: str) -> bytes:
        return f'SELECT cdcd.set_context(\'{{"actor": "{actor}", "traceparent": "{TRACE}"}}\')'.encode()

    # WHEN actors change rows in small, rolled back, prepared and large transactions, beside kills
    with database.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        connection.execute(says("anna"))
        connection.execute("INSERT INTO orders VALUES (2)")
        connection.execute(says("bert"))
        connection.execute("INSERT INTO orders VALUES (3)")
        connection.commit()
        connection.execute("INSERT INTO orders VALUES (4)")
        connection.commit()
        connection.execute(says("carl"))
        connection.execute("INSERT INTO orders VALUES (5); SAVEPOINT s")
        connection.execute(says("nobody"))
        connection.execute("ROLLBACK TO s; INSERT INTO orders VALUES (6)")
        connection.commit()
        connection.execute(says("dora"))
        connection.execute("INSERT INTO orders VALUES (7)")
        if two_phase:
            connection.execute(f"PREPARE TRANSACTION '{unique}'".encode())
        connection.commit()
        connection.execute(says("emil"))
        for number in range(10, 3010):
            connection.execute(f"INSERT INTO orders VALUES ({number})".encode())
        process.kill()
        process.start()
        process.await_streaming()
        connection.commit()
    process.await_metric("cdcd_events_total", lambda count: count > 500, "c", "public.orders")
    process.kill()
    process.start()
    process.await_streaming()
    if two_phase:
        database.execute(f"COMMIT PREPARED '{unique}'")
    database.execute("UPDATE orders SET id = 8 WHERE id = 1")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # THEN each record has the actor of its place, and none is lost or doubled
    found = actors(broker, unique)
    expected: dict[int, list[str | None]] = {
        1: [None, None, None], 2: ["anna"], 3: ["bert"], 4: [None], 5: ["carl"], 6: ["carl"], 7: ["dora"], 8: [None],
    }  # fmt: skip
    expected |= {number: ["emil"] for number in range(10, 3010)}
    assert found == {key(number): names for number, names in expected.items()}

    # AND the context has neither a record of its own nor its token in a header
    with Reader(broker.bootstrap_servers, unique) as reader:
        records = list(reader.read_all())
    assert {each.topic for each in records} == {f"{unique}.public.orders"}
    (of_two,) = [dict(each.headers) for each in records if each.key == key(2)]
    assert of_two == {
        "cdcd.context.actor": b"anna",
        "cdcd.context.role": b"postgres",
        "traceparent": TRACE.encode(),
    }
    assert not process.saw("context.refused")
    assert TOKEN not in process.output()
    assert process.stop() == 0


@pytest.mark.postgres(only=18)
@pytest.mark.parametrize(
    "sections",
    [
        {"format": {"key": "avro", "value": "avro"}},
        {"format": {"value": "protobuf"}},
        {"format": {"value": "cloudevents"}},
        {"format": {"value": "cloudevents"}, "cloudevents": {"mode": "binary"}},
        {"format": {"key": "avro", "value": "avro"}, "event_flattening": {"enabled": True}},
    ],
    ids=["avro", "protobuf", "cloudevents", "binary cloudevents", "flattened avro"],
)
def test_every_format_has_the_headers(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, sections: dict[str, Any]
):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with SchemaRegistry() as registry:
        process = daemon(
            configuration(
                unique,
                database.dsn(options="-c logical_decoding_work_mem=64kB"),
                broker.bootstrap_servers,
                registry={"url": registry.url},
                context={"enabled": True},
                **sections,
            )
        )
        process.await_streaming()
        with psycopg.connect(database.dsn()) as connection:
            connection.execute(
                "SELECT pg_logical_emit_message(true, 'cdcd.context', '{\"actor\": \"anna\"}')"
            )
            for number in range(1500):
                connection.execute("INSERT INTO orders VALUES (%s)", (number,))
            connection.execute("DELETE FROM orders WHERE id = 1")
        database.execute("INSERT INTO orders VALUES (-1)")
        await_flushed(database.dsn(), f"cdcd_{unique}")
        assert process.stop() == 0
    with Reader(broker.bootstrap_servers, unique) as reader:
        named = [dict(each.headers).get("cdcd.context.actor") for each in reader.read_all()]
    assert named == [b"anna"] * (len(named) - 1) + [None]
    assert len(named) > 1500


@pytest.mark.postgres(only=13)
def test_a_server_without_messages_is_refused(
    database: Database, broker: KafkaBroker, trial: Callable[..., Any], unique: str
):
    one = trial(database.dsn(), broker.bootstrap_servers)
    one.configure(context={"enabled": True})
    found = [each for each in one.check().findings if each["code"] == "context.source"]
    assert [each["level"] for each in found] == ["error"]
    one.daemon.start()
    assert one.daemon.wait() == 2
    assert "context.enabled" in one.daemon.last_words()
