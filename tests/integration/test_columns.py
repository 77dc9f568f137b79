"""Values that `columns` protects are in no byte that leaves the daemon: topics, disk, log, page.

Every planted value holds the marker. It is looked for in whatever the daemon wrote: streamed and prepared transactions,
snapshots by both methods, transactions that wait on disk, defaults of columns, and a daemon that was killed.
"""

import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from deploy.demo.fold import await_flushed
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=18)

MARKER: Final = "s3cr3t"
KEYS: Final = {"hash_key": "correct horse battery staple", "encryption_key": "A" * 43 + "="}

COLUMNS: Final = {
    "email": "text",
    "name": "varchar(200)",
    "note": "text",
    "data": "jsonb",
    "raw": "bytea",
    "tags": "text[]",
    "pay": "numeric",
}
RULES: Final = {
    "hash": ["public.people.email", "public.people.data", "public.by_name.name"],
    "mask": {"public.people.name*": "***", "public.people.pay": "0"},
    "truncate": {"public.people.note": 3},
    "encrypt": ["public.people.raw", "public.people.tags"],
    **KEYS,
}


def planted(number: str) -> str:
    """The values of a row: each of the text types holds the marker, bytes hold it too, and so does its base64."""
    text = f"'{MARKER}-' || {number}"
    return (
        f"{text}, {text}, 'n0-' || repeat({text}, 300), jsonb_build_object('k', {text}), convert_to({text}, 'UTF8'), "
        f"ARRAY[{text}], 424242424200000 + {number}"
    )


def everything(broker: KafkaBroker, prefix: str) -> Iterator[bytes]:
    """Keys, values and headers of every record of the pipeline's topics."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": prefix, "enable.partition.eof": True}
    )
    try:
        for topic in [name for name in consumer.list_topics(timeout=30).topics if name.startswith(prefix)]:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while True:
                message = consumer.poll(30)
                assert message is not None, f"{topic} has no end"
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    break
                headers: Any = message.headers() or []
                yield b"%b\n%b\n%r" % (message.key() or b"", message.value() or b"", headers)
    finally:
        consumer.close()


def assert_hidden(where: str, data: bytes) -> None:
    # 'czNjcjN0' is base64 of the marker; a row is found by its pay as well.
    for trace in (MARKER.encode(), b"czNjcjN0", MARKER.encode().hex().encode(), b"4242424242"):
        at = data.find(trace)
        assert at < 0, f"{where}: {data[max(0, at - 60) : at + 60]!r}"


def open_files(process: Daemon) -> Iterator[bytes]:
    """What is in the spool's file, which has no name."""
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        # Others of its files and connections may be closed meanwhile.
        with suppress(FileNotFoundError):
            if "/spool/" in str(link.readlink()):
                yield link.read_bytes()


@pytest.mark.parametrize("method", ["exported", "incremental"])
def test_a_protected_value_is_in_no_topic_file_log_or_page(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, method: str
):
    # GIVEN rows with a secret in each column, in a table whose key is a secret as well
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    database.execute(f"CREATE TABLE people (id int PRIMARY KEY, {columns})")
    database.execute("CREATE TABLE by_name (name text, city text, PRIMARY KEY (name, city))")
    database.execute(f"INSERT INTO people SELECT g, {planted('g')} FROM generate_series(1, 300) g")
    database.execute(f"INSERT INTO by_name SELECT '{MARKER}' || g, 'x' FROM generate_series(1, 300) g")
    process = daemon(
        configuration(
            unique,
            database.dsn(options="-c logical_decoding_work_mem=64kB"),
            broker.bootstrap_servers,
            columns=RULES,
            postgres={"two_phase": True},
            snapshot={"mode": "initial", "method": method, "chunk_bytes": 8192},
            spool={"memory_bytes_max": 65_536},
            log={"level": "debug"},
        )
    )
    process.await_event("snapshot.finished")
    process.await_streaming()

    # WHEN every kind of transaction comes, one of them large enough to wait on disk
    with database.connect(autocommit=False) as connection:
        connection.execute(
            f"INSERT INTO people SELECT g, {planted('g')} FROM generate_series(1001, 1600) g".encode()
        )
        connection.execute(b"UPDATE people SET id = id + 10000 WHERE id < 50")
        process.await_event("spool.spilled")
        for content in until(lambda: list(open_files(process)) or None, "nothing is on disk"):
            assert_hidden("spool", content)
        connection.commit()
    database.execute("UPDATE people SET email = email || 'x' WHERE id % 2 = 0")
    database.execute(f"ALTER TABLE people ADD COLUMN name2 text DEFAULT '{MARKER}-default'")
    database.execute("ALTER TABLE people DROP COLUMN name2")
    database.execute(f"UPDATE by_name SET name = name || '{MARKER}' WHERE name LIKE '%1'")
    database.execute("ALTER TABLE people REPLICA IDENTITY FULL")
    database.execute("UPDATE people SET name = name || 'y' WHERE id % 3 = 0")
    with database.connect(autocommit=False) as connection:
        connection.execute(
            f"INSERT INTO people SELECT g, {planted('g')} FROM generate_series(2001, 2100) g".encode()
        )
        connection.execute(b"PREPARE TRANSACTION 'people'")
    process.await_metric("cdcd_prepared_open", lambda count: count == 1)
    process.kill()
    process.start()
    process.await_streaming()
    database.execute("COMMIT PREPARED 'people'")
    database.execute("DELETE FROM people WHERE id % 5 = 0")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    # THEN no trace of a value is in a topic, on a page or in the log
    records = 0
    for data in everything(broker, unique):
        assert_hidden("topics", data)
        records += 1
    assert records > 2000
    for page in ("/", "/v1/status", "/metrics"):
        assert_hidden(page, process.page(page).encode())
    assert process.stop() == 0
    assert_hidden("log", process.output(all_lives=True).encode())


def test_keys_are_replaced_with_an_overlap(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a pipeline that has delivered with one key for each action
    database.execute("CREATE TABLE people (id int PRIMARY KEY, mail text, pay text)")
    former, key = b64encode(b"f" * 32).decode(), b64encode(b"n" * 32).decode()
    rules = {"hash": ["public.people.mail"], "encrypt": ["public.people.pay"], "per_column": True}
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            columns={**rules, "hash_key": "the former hash key", "encryption_key": former},
        )
    )
    process.await_streaming()
    database.execute(f"INSERT INTO people VALUES (1, '{MARKER}', '{MARKER}-pay')")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert process.stop() == 0

    # WHEN both keys are replaced, while the columns are renamed
    database.execute("ALTER TABLE people RENAME COLUMN mail TO m")
    database.execute("ALTER TABLE people RENAME COLUMN pay TO p")
    database.execute(f"INSERT INTO people VALUES (2, '{MARKER}', '{MARKER}-pay')")
    process.config["columns"] = {
        **rules,
        "hash_key": "the new key of hashes",
        "encryption_key": key,
        "former_keys": ["the former hash key", former],
    }
    process.start()
    await_flushed(database.dsn(), f"cdcd_{unique}")
    told = {event["setting"] for event in process.events if event["event"] == "settings.changed"}
    assert told == {"columns.hash_key", "columns.encryption_key"}
    assert process.stop() == 0

    # AND the former keys are removed from the configuration after that start
    del process.config["columns"]["former_keys"]
    process.start()
    process.await_streaming()
    database.execute(f"INSERT INTO people VALUES (3, '{MARKER}', '{MARKER}-pay')")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert process.stop() == 0

    # THEN each checkpoint was authentic, and each ciphertext names the key that decrypts it
    assert not [event for event in process.events if event["event"] == "checkpoint.unsigned"]
    rows = {row["id"]: row for row in rows_of(broker, f"{unique}.public.people")}
    assert decrypted_of(rows[1]["pay"], [key, former], "public", "people", "pay") == f"{MARKER}-pay"
    for number in (2, 3):
        assert decrypted_of(rows[number]["p"], [former, key], "public", "people", "p") == f"{MARKER}-pay"
        with pytest.raises(KeyError):
            decrypted_of(rows[number]["p"], [former], "public", "people", "p")
    assert rows[2]["m"] == rows[3]["m"] != rows[1]["mail"]
    for data in everything(broker, unique):
        assert_hidden("topics", data)


def rows_of(broker: KafkaBroker, topic: str) -> list[dict[str, Any]]:
    values = (data.split(b"\n")[1] for data in everything(broker, topic))
    return [json.loads(value)["after"] for value in values if value]


def decrypted_of(text: str, keys: list[str], schema: str, table: str, column: str) -> str:
    """As docs/columns.md has it (tests/unit/adapters/credentials/test_column_forms.py compares)."""
    data = b64decode(text)
    by_id = {hmac.digest(b64decode(key), b"cdcd: id of a key", "sha256")[:4]: b64decode(key) for key in keys}
    names = json.dumps([schema, table, column], ensure_ascii=False, separators=(",", ":")).encode()
    padded = AESGCM(by_id[data[1:5]]).decrypt(data[5:17], data[17:], data[:5] + names)
    return padded[: padded.rindex(b"\x80")].decode()
