"""Avro with the schemas in AWS Glue's registry, as moto's server has it, through a daemon that is killed."""

import io
import json
import urllib.request
from collections.abc import Callable
from typing import Any
from uuid import UUID

import fastavro
import psycopg
import pytest

from deploy.local import KafkaBroker
from tests.integration.daemon import Daemon, configuration
from tests.integration.visible_records import await_decided, messages
from tests.s3_store import CREDENTIALS, S3Store

pytest.importorskip("moto", reason="moto and botocore are in requirements-dev.lock")


def schema_of(url: str, version: UUID) -> Any:
    """The schema of a version, as a consumer of AWS's asks for it, but without a signature."""
    request = urllib.request.Request(
        url,
        json.dumps({"SchemaVersionId": str(version)}).encode(),
        {
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": "AWSGlue.GetSchemaVersion",
            "Authorization": "AWS4-HMAC-SHA256 Credential=somebody/20260101/us-east-1/glue/aws4_request",
        },
    )
    with urllib.request.urlopen(request) as answer:
        return fastavro.parse_schema(json.loads(json.load(answer)["SchemaDefinition"]))


def values(servers: str, topic: str, url: str) -> list[Any]:
    """What a `read_committed` consumer finds in a topic of one partition, by the header of AWS's serializers."""
    found: list[Any] = []
    for message in messages(servers, topic):
        data = message.value()
        assert data is not None
        assert data[:2] == b"\x03\x00"
        schema = schema_of(url, UUID(bytes=data[2:18]))
        found.append(fastavro.schemaless_reader(io.BytesIO(data[18:]), schema, None))
    return found


@pytest.mark.postgres(only=18)
def test_records_name_the_versions_of_glue_and_a_kill_leaves_every_row_once(
    unique: str,
    database: Any,
    broker: KafkaBroker,
    daemon: Callable[[Any], Daemon],
    monkeypatch: pytest.MonkeyPatch,
):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    servers, topic = broker.bootstrap_servers, f"{unique}.public.t"
    with S3Store() as glue, psycopg.connect(database.dsn(), autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        # GIVEN a daemon that streams into Avro with Glue
        running = daemon(
            configuration(
                unique,
                database.dsn(),
                servers,
                format={"key": "avro", "value": "avro"},
                registry={"kind": "glue", "url": glue.url, "glue": {"region": "us-east-1"}},
            )
        )
        running.await_streaming()
        sql.execute("INSERT INTO t VALUES (1, 'first')")
        told = running.await_event("registry.registered", subject=f"{topic}-value")
        assert UUID(told["id"]).version == 4
        # WHEN it is killed, and the table changes
        running.kill()
        sql.execute("INSERT INTO t VALUES (2, 'while it was away')")
        running.start()
        running.await_streaming()
        sql.execute("ALTER TABLE t ADD COLUMN more int")
        sql.execute("INSERT INTO t VALUES (3, 'new form', 7)")
        running.await_metric("cdcd_events_total", lambda count: count >= 1, "c", "public.t")
        running.await_metric("cdcd_lag_bytes", lambda lag: lag == 0)
        assert running.stop() == 0
        # THEN each row is there once, under the schema that its header names
        await_decided(servers, topic)
        found = values(servers, topic, glue.url)
        assert [value["after"]["id"] for value in found] == [1, 2, 3]
        assert [value["after"].get("more", "none") for value in found] == ["none", "none", 7]
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in running.last_words()
