"""Whatever ends `cdcd run` in its first minute, `cdcd check` has said before, with the same cure.

Each scenario breaks one thing. `cdcd check` is asked first, and changes nothing. Then `cdcd run` ends with the exit
code that the table of codes promises, and its hint and the fix of the finding name the same cure.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from cdcd.adapters.kafka.checkpoint import CheckpointTopic, peek_checkpoint
from cdcd.build import is_compiled
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import CheckpointRecords
from cdcd.core.transactions.position import Position
from cdcd.telemetry.check_codes import CODES
from deploy.local import KafkaBroker, PostgresServer, client_program
from deploy.local.process import free_port
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.daemon import until
from tests.integration.faults.holder import slot_holder, walsender
from tests.integration.faults.trial import SECRET, Trial, command
from tests.integration.kafka_rights import PASSWORD, allow, guarded_broker, login, revoke
from tests.schema_registry import SchemaRegistry

pytestmark = pytest.mark.postgres(only=18)

ROLE: Final = "foreseen"
READER: Final = "foreseen_reader"


@pytest.fixture(scope="module")
def _guarded_broker(scratch: Path) -> Iterator[KafkaBroker]:
    with guarded_broker(scratch / "kafka-guarded-check") as server:
        yield server


@dataclass
class Scene:
    """What a scenario breaks: `one` is the pipeline, which never ran and whose table is public.t with a row."""

    one: Trial
    database: Database
    request: pytest.FixtureRequest
    stack: ExitStack
    servers: list[PostgresServer] = field(default_factory=list)
    """Servers of this scenario alone."""

    def configure(self, **sections: Any) -> None:
        self.one.configure(**sections)

    def execute(self, statement: str) -> None:
        self.one.execute(statement)

    def server(self, version: int = 18, **options: Any) -> PostgresServer:
        """A server of this scenario alone, with the table, which the pipeline reads."""
        server: PostgresServer = self.request.getfixturevalue("private_postgres")(version, **options)
        server.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        self.servers.append(server)
        self.configure(postgres={"dsn": server.dsn(password=SECRET)})
        return server

    def broker(self, **options: Any) -> KafkaBroker:
        """A broker of this scenario alone."""
        broker: KafkaBroker = self.request.getfixturevalue("private_broker")(**options)
        self.configure(kafka={"bootstrap_servers": broker.bootstrap_servers})
        self.one.reader_servers = broker.bootstrap_servers
        return broker

    def as_role(self, *rights: str, publication: bool = True) -> None:
        """The pipeline connects as a role that may replicate, and has these rights besides."""
        self.execute(f"CREATE ROLE {ROLE} LOGIN REPLICATION")
        self.stack.callback(self.execute, f"DROP ROLE {ROLE}")
        self.stack.callback(self.execute, f"DROP OWNED BY {ROLE}")
        for right in rights:
            self.execute(right)
        if publication:
            self.execute(f"CREATE PUBLICATION cdcd_{self.one.name} FOR ALL TABLES")
        self.configure(postgres={"dsn": self.database.dsn(user=ROLE, password=SECRET)})

    def topic(self, name: str, *, partitions: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        create_topics(self.one.reader_servers, name, partitions=partitions, config=settings)

    def own_topics(self, table: str = "") -> None:
        name = self.one.name
        self.topic(f"{name}.checkpoint", cleanup_policy="compact")
        self.topic(f"{name}.schemas", cleanup_policy="compact")
        self.topic(f"{name}.message")
        if table:
            self.topic(table)

    def guarded(self, *rights: tuple[ResourceType, str, AclOperation], password: str = PASSWORD) -> None:
        """A broker that wants the password, and allows these rights. A name that ends in a point is a prefix."""
        broker: KafkaBroker = self.request.getfixturevalue("_guarded_broker")
        self.one.reader_servers = broker.admin_bootstrap_servers
        self.one.secrets.append(password)
        self.configure(kafka={"bootstrap_servers": broker.bootstrap_servers, "properties": login(password)})
        bindings = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.PREFIXED if name.endswith(".") else ResourcePatternType.LITERAL,
                "User:cdcd",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for kind, name, operation in rights
        ]
        if bindings:
            allow(broker.admin_bootstrap_servers, bindings)


def topic_rights(scene: Scene, *but: AclOperation) -> list[tuple[ResourceType, str, AclOperation]]:
    """The documented rights on topics without those of `but`."""
    prefix = f"{scene.one.name}."
    wanted = [
        (ResourceType.TOPIC, prefix, AclOperation.WRITE),
        (ResourceType.TOPIC, prefix, AclOperation.CREATE),
        (ResourceType.TOPIC, f"{prefix}checkpoint", AclOperation.READ),
        (ResourceType.TOPIC, f"{prefix}schemas", AclOperation.READ),
    ]
    return [one for one in wanted if one[2] not in but]


def transactional(scene: Scene) -> tuple[ResourceType, str, AclOperation]:
    return (ResourceType.TRANSACTIONAL_ID, f"cdcd-{scene.one.name}", AclOperation.WRITE)


# What is broken. Each function is a scenario; the table below says what comes of it.


def wrong_password(scene: Scene) -> None:
    server = scene.server(
        hba=("host all postgres 127.0.0.1/32 trust", "host all all 127.0.0.1/32 scram-sha-256")
    )
    server.execute("CREATE ROLE cdcd LOGIN SUPERUSER PASSWORD 'r1ght-5ecret'")
    scene.configure(postgres={"dsn": server.dsn(user="cdcd", password=SECRET)})


def no_such_database(scene: Scene) -> None:
    scene.configure(postgres={"dsn": scene.database.server.dsn("nowhere", password=SECRET)})


def no_server(scene: Scene) -> None:
    dsn = f"postgresql://cdcd:{SECRET}@127.0.0.1:{free_port()}/shop"
    scene.configure(postgres={"dsn": dsn}, startup_timeout_s=1)


def no_such_service(scene: Scene) -> None:
    scene.configure(postgres={"dsn": scene.database.dsn(password=SECRET, service="nowhere")})


def no_replication_right(scene: Scene) -> None:
    scene.as_role(f"ALTER ROLE {ROLE} NOREPLICATION")


def a_standby(scene: Scene) -> None:
    primary = scene.server()
    primary.execute("SELECT pg_create_physical_replication_slot('standby')")
    primary.stop()
    standby = primary.make_standby(primary.data_dir.with_name(f"{primary.data_dir.name}-standby"))
    scene.stack.callback(standby.destroy)
    primary.start()
    standby.start()
    scene.configure(postgres={"dsn": standby.dsn(password=SECRET)}, startup_timeout_s=1)


def an_old_server(scene: Scene) -> None:
    scene.server(13)
    scene.configure(postgres={"protocol": 4})


def failover_before_17(scene: Scene) -> None:
    scene.server(13)
    scene.configure(postgres={"failover": True})


def wal_level_replica(scene: Scene) -> None:
    scene.server(settings={"wal_level": "replica"})


def no_free_slot(scene: Scene) -> None:
    server = scene.server(settings={"max_replication_slots": "1"})
    server.execute("SELECT pg_create_physical_replication_slot('theirs')")


def no_free_walsender(scene: Scene) -> None:
    server = scene.server(settings={"max_wal_senders": "1", "max_replication_slots": "1"})
    scene.stack.enter_context(walsender(server.dsn()))
    scene.configure(startup_timeout_s=1)


def no_right_to_publish(scene: Scene) -> None:
    scene.as_role(publication=False)


def no_such_table(scene: Scene) -> None:
    scene.configure(postgres={"tables": ["public.T"]})


def a_slot_of_another_plugin(scene: Scene) -> None:
    scene.execute(f"SELECT pg_create_logical_replication_slot('{scene.one.slot}', 'test_decoding')")


def a_slot_in_use(scene: Scene) -> None:
    dsn = scene.database.dsn(password=SECRET, options="-c wal_sender_timeout=2s")
    scene.configure(postgres={"dsn": dsn}, startup_timeout_s=1)
    scene.execute(f"CREATE PUBLICATION cdcd_{scene.one.name} FOR ALL TABLES")
    scene.execute(f"SELECT pg_create_logical_replication_slot('{scene.one.slot}', 'pgoutput')")
    scene.stack.enter_context(slot_holder(scene.database.dsn(), scene.one.slot, f"cdcd_{scene.one.name}"))


def a_dropped_slot(scene: Scene) -> None:
    scene.one.start()
    assert scene.one.daemon.stop() == 0
    scene.one.drop_slot()


def a_publication_made_anew_behind_the_slot(scene: Scene) -> None:
    publication = f"cdcd_{scene.one.name}"
    scene.one.start()
    assert scene.one.daemon.stop() == 0
    scene.execute(f"DROP PUBLICATION {publication}")
    scene.one.insert(2)
    scene.execute(f"CREATE PUBLICATION {publication} FOR TABLE t")


def a_publication_that_no_longer_publishes_by_the_root(scene: Scene) -> None:
    _publish_partitioned_tables_as_a_whole(scene)
    scene.execute("CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    scene.execute("CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (9)")
    scene.one.start()
    assert scene.one.daemon.stop() == 0
    scene.execute(f"ALTER PUBLICATION cdcd_{scene.one.name} SET (publish_via_partition_root = false)")


def no_select(scene: Scene) -> None:
    scene.as_role()
    scene.configure(snapshot={"mode": "initial"})


def too_few_connections_of_the_role(scene: Scene) -> None:
    scene.as_role(f"ALTER ROLE {ROLE} CONNECTION LIMIT 2")
    scene.configure(startup_timeout_s=1)


def too_few_connections_of_the_database(scene: Scene) -> None:
    scene.as_role()
    scene.execute(f'ALTER DATABASE "{scene.database.name}" CONNECTION LIMIT 2')
    scene.configure(startup_timeout_s=1)


def no_right_to_emit_messages(scene: Scene) -> None:
    scene.as_role(
        "REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text, boolean) FROM PUBLIC",
        f"GRANT SELECT ON t TO {ROLE}",
    )
    scene.configure(snapshot={"mode": "initial", "method": "incremental"})


def no_usage(scene: Scene) -> None:
    scene.as_role(
        "CREATE SCHEMA closed", "CREATE TABLE closed.t AS SELECT 1 AS id", f"GRANT SELECT ON t TO {ROLE}"
    )
    scene.execute(f"GRANT SELECT ON closed.t TO {ROLE}")
    scene.configure(snapshot={"mode": "initial"})


def no_select_on_a_partition(scene: Scene) -> None:
    scene.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    scene.execute("CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (9)")
    scene.execute("INSERT INTO p VALUES (1)")
    scene.as_role(f"GRANT SELECT ON t, p TO {ROLE}", publication=False)
    scene.execute(
        f"CREATE PUBLICATION cdcd_{scene.one.name} FOR TABLE t, p WITH (publish_via_partition_root = true)"
    )
    scene.configure(snapshot={"mode": "initial"})


def row_level_security(scene: Scene) -> None:
    scene.as_role(f"GRANT SELECT ON t TO {ROLE}", "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    scene.configure(snapshot={"mode": "initial"})


def a_keyless_table_and_a_slot_that_is_older(scene: Scene) -> None:
    scene.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    scene.execute(f"CREATE PUBLICATION cdcd_{scene.one.name} FOR ALL TABLES")
    scene.execute(f"SELECT pg_create_logical_replication_slot('{scene.one.slot}', 'pgoutput')")
    scene.configure(snapshot={"mode": "initial"}, topics={"truncate": False})


def a_keyless_table_read_incrementally(scene: Scene) -> None:
    scene.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    scene.configure(snapshot={"mode": "initial", "method": "incremental"}, topics={"truncate": False})


def tables_with_one_topic(scene: Scene) -> None:
    scene.execute('CREATE TABLE "a b" (id int PRIMARY KEY)')
    scene.execute('CREATE TABLE "a$b" (id int PRIMARY KEY)')


def a_template_that_does_not_tell_tables_apart(scene: Scene) -> None:
    scene.execute("CREATE SCHEMA other")
    for schema in ("public", "other"):
        scene.execute(f"CREATE TABLE {schema}.same (id int PRIMARY KEY)")
    scene.configure(topics={"name": "{prefix}.app.{table}"})


def a_table_name_with_a_point_under_a_name_template(scene: Scene) -> None:
    scene.execute('CREATE TABLE "a.b" (id int PRIMARY KEY)')
    scene.configure(topics={"name": "{prefix}.app.{table}"})


def no_broker(scene: Scene) -> None:
    scene.configure(kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"}, startup_timeout_s=1)


def brokers_at_postgresqls_port(scene: Scene) -> None:
    server = scene.database.server
    scene.configure(kafka={"bootstrap_servers": f"127.0.0.1:{server.port}"})


def wrong_sasl_password(scene: Scene) -> None:
    scene.guarded(password="wr0ng-5ecret")


def an_unknown_property(scene: Scene) -> None:
    scene.configure(kafka={"properties": {"compresion.type": "lz4"}})


def a_wrong_value_of_the_producers(scene: Scene) -> None:
    scene.configure(kafka={"properties": {"compression.type": "brotli"}})


def a_batch_size_that_is_not_a_number(scene: Scene) -> None:
    scene.configure(kafka={"properties": {"batch.size": "large"}})


def a_wrong_value_of_the_connections(scene: Scene) -> None:
    scene.configure(kafka={"properties": {"security.protocol": "TELNET"}})


def a_transaction_longer_than_the_broker_allows(scene: Scene) -> None:
    scene.broker(settings={"transaction.max.timeout.ms": "30000"})
    scene.configure(kafka={"transaction": {"timeout_s": 60}})


def more_replicas_than_brokers(scene: Scene) -> None:
    scene.configure(topics={"create": {"replication_factor": 3}})


def a_setting_of_topics_that_does_not_exist(scene: Scene) -> None:
    scene.configure(topics={"create": {"config": {"no.such.setting": "1"}}})


def topics_that_nobody_creates(scene: Scene) -> None:
    scene.configure(topics={"create": {"enabled": False}})


def a_tables_topic_that_nobody_creates(scene: Scene) -> None:
    scene.own_topics()
    scene.configure(topics={"create": {"enabled": False}}, snapshot={"mode": "initial"})


def no_rights_on_topics(scene: Scene) -> None:
    scene.guarded()


def a_mask_for_a_key_column(scene: Scene) -> None:
    scene.configure(columns={"mask": {"*.*.id": "*"}})


def a_key_whose_former_values_are_not_sent(scene: Scene) -> None:
    scene.execute("ALTER TABLE t ADD name text")
    scene.configure(key={"columns": {"public.t": ["name"]}})


def a_partition_by_what_postgresql_does_not_send(scene: Scene) -> None:
    scene.execute("ALTER TABLE t ADD customer integer")
    scene.configure(partitioner={"columns": {"public.t": ["customer"]}})


def a_partition_by_a_protected_column(scene: Scene) -> None:
    scene.execute("ALTER TABLE t ADD customer integer, REPLICA IDENTITY FULL")
    scene.configure(
        partitioner={"columns": {"public.t": ["customer"]}}, columns={"mask": {"public.t.customer": "*"}}
    )


def two_fields_with_one_name(scene: Scene) -> None:
    scene.execute("ALTER TABLE t ADD customer integer")
    scene.configure(fields={"tables": {"public.t": {"constants": {"customer": "x"}}}})


def a_computed_field_that_does_not_fit(scene: Scene) -> None:
    scene.execute("ALTER TABLE t ADD price numeric")
    scene.configure(fields={"tables": {"public.t": {"computed": {"gross": "row.price * 1.2"}}}})


def a_bare_key_of_two_columns(scene: Scene) -> None:
    scene.execute(
        "ALTER TABLE t ADD shop int NOT NULL DEFAULT 1, DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (shop, id)"
    )
    scene.configure(key={"forms": {"public.t": {"bare": True}}})


def _publish_partitioned_tables_as_a_whole(scene: Scene) -> None:
    scene.execute(
        f"CREATE PUBLICATION cdcd_{scene.one.name} FOR ALL TABLES WITH (publish_via_partition_root = true)"
    )


def a_partition_that_does_not_send_the_key(scene: Scene) -> None:
    _publish_partitioned_tables_as_a_whole(scene)
    scene.execute("CREATE TABLE whole (id int PRIMARY KEY, code int NOT NULL) PARTITION BY RANGE (id)")
    scene.execute("CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (10)")
    scene.execute("CREATE UNIQUE INDEX part_code ON part (code)")
    scene.execute("ALTER TABLE part REPLICA IDENTITY USING INDEX part_code")


def a_filter_over_what_a_partition_does_not_send(scene: Scene) -> None:
    _publish_partitioned_tables_as_a_whole(scene)
    scene.execute("CREATE TABLE whole (id int PRIMARY KEY, code int) PARTITION BY RANGE (id)")
    scene.execute("CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (10)")
    scene.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    scene.configure(filters={"tables": {"public.whole": {"keep": "row.code > 1"}}})


def a_chosen_key_and_a_slot_that_is_older(scene: Scene) -> None:
    scene.execute("ALTER TABLE t ADD name text, REPLICA IDENTITY FULL")
    scene.configure(
        key={"columns": {"public.t": ["name"]}},
        snapshot={"mode": "initial", "method": "incremental"},
        topics={"truncate": False},
    )


def two_rules_for_a_column(scene: Scene) -> None:
    scene.configure(columns={"mask": {"public.t.note": "*"}, "exclude": ["public.*.note"]})


def an_outbox_table_without_a_column_of_events(scene: Scene) -> None:
    scene.configure(
        outbox={"topics": ["events"], "tables": {"public.t": {"topic": "events", "payload": "note"}}}
    )


def a_filter_over_what_postgresql_does_not_send(scene: Scene) -> None:
    scene.configure(filters={"tables": {"public.t": {"keep": "row.note != 'draft'"}}})


def a_filter_that_does_not_fit_its_table(scene: Scene) -> None:
    scene.configure(filters={"tables": {"public.*": {"keep": "row.note > 5", "old_row": "assumed"}}})


def routes(**more: Any) -> dict[str, Any]:
    rules = [{"when": "row.note == 'eu'", "topic": "{prefix}.{schema}.{table}-eu"}]
    return {"tables": {"public.t": {"rules": rules, **more}}}


def routes_over_what_postgresql_does_not_send(scene: Scene) -> None:
    scene.configure(routes=routes())


def routes_that_do_not_fit_their_table(scene: Scene) -> None:
    found = routes(old_row="assumed")
    found["tables"]["public.t"]["rules"][0]["when"] = "row.note > 5"
    scene.configure(routes=found)


def a_route_to_a_topic_that_nobody_creates(scene: Scene) -> None:
    scene.own_topics(f"{scene.one.name}.public.t")
    scene.configure(
        topics={"create": {"enabled": False}},
        snapshot={"mode": "initial"},
        routes=routes(old_row="assumed"),
    )


def a_route_to_the_topic_of_another_table(scene: Scene) -> None:
    scene.execute('CREATE TABLE "t-eu" (id int PRIMARY KEY)')
    scene.configure(routes=routes(old_row="assumed"))


def no_right_to_create_topics(scene: Scene) -> None:
    scene.guarded(*topic_rights(scene, AclOperation.CREATE), transactional(scene))


def no_right_to_write_to_topics(scene: Scene) -> None:
    scene.guarded(
        *topic_rights(scene, AclOperation.WRITE),
        (ResourceType.TOPIC, f"{scene.one.name}.", AclOperation.DESCRIBE),
        transactional(scene),
    )
    scene.own_topics(scene.one.topic)


def no_right_to_write_to_topics_that_do_not_exist(scene: Scene) -> None:
    scene.guarded(
        *topic_rights(scene, AclOperation.WRITE),
        (ResourceType.TOPIC, f"{scene.one.name}.", AclOperation.DESCRIBE),
        transactional(scene),
    )
    # The broker and its principal are those of other scenarios too, which must not read the ACLs.
    may_read_acls = AclBinding(
        ResourceType.BROKER,
        "kafka-cluster",
        ResourcePatternType.LITERAL,
        "User:cdcd",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )
    allow(scene.one.reader_servers, [may_read_acls])
    scene.stack.callback(revoke, scene.one.reader_servers, may_read_acls)


def no_right_to_write_to_a_tables_topic(scene: Scene) -> None:
    name = scene.one.name
    own = [f"{name}.{topic}" for topic in ("checkpoint", "schemas", "message")]
    scene.guarded(
        *[(ResourceType.TOPIC, topic, AclOperation.WRITE) for topic in own],
        (ResourceType.TOPIC, own[0], AclOperation.READ),
        (ResourceType.TOPIC, scene.one.topic, AclOperation.DESCRIBE),
        transactional(scene),
    )
    scene.own_topics(scene.one.topic)
    scene.configure(snapshot={"mode": "initial"})


def no_right_to_read_the_checkpoint(scene: Scene) -> None:
    scene.guarded(*topic_rights(scene, AclOperation.READ), transactional(scene))
    scene.own_topics(scene.one.topic)
    producer = Producer({"bootstrap.servers": scene.one.reader_servers})
    producer.produce(f"{scene.one.name}.checkpoint", None, scene.one.name)
    assert producer.flush(30) == 0


def no_right_on_the_transactional_id(scene: Scene) -> None:
    scene.guarded(*topic_rights(scene))


def a_checkpoint_that_is_not_compacted(scene: Scene) -> None:
    scene.topic(f"{scene.one.name}.checkpoint", cleanup_policy="delete")


def a_checkpoint_of_another_pipeline(scene: Scene) -> None:
    scene.own_topics()
    producer = Producer({"bootstrap.servers": scene.one.reader_servers})
    theirs = Checkpoint("7300000000000000000", 1, "", Position(1, 2), 2).encode()
    producer.produce(f"{scene.one.name}.checkpoint", theirs, "other")
    assert producer.flush(30) == 0


def the_prefix_of_another_pipeline(scene: Scene) -> None:
    """It follows the former hint: a checkpoint of its own, in the topics of the other pipeline."""
    name = scene.one.name
    scene.one.start()
    scene.one.expect()
    scene.execute("INSERT INTO t VALUES (7, 'theirs')")
    scene.one.expect(7)
    assert scene.one.daemon.stop() == 0
    scene.configure(name=f"{name}_2", topics={"prefix": name, "checkpoint": f"{name}_2.checkpoint"})


def the_transactional_id_of_another_pipeline(scene: Scene) -> None:
    name = scene.one.name
    scene.one.start()
    scene.one.expect()
    assert scene.one.daemon.stop() == 0
    scene.configure(
        name=f"{name}_2", topics={"prefix": f"{name}_2"}, kafka={"transactional_id": f"cdcd-{name}"}
    )
    scene.configure(postgres={"slot": f"cdcd_{name}_2"})


def a_checkpoint_that_does_not_say_which_columns_are_protected(scene: Scene) -> None:
    scene.configure(columns={"mask": {"public.t.note": "*"}})
    scene.one.start()
    assert scene.one.daemon.stop() == 0
    topic = f"{scene.one.name}.checkpoint"
    found = peek_checkpoint(
        CheckpointTopic(
            {"bootstrap.servers": scene.one.reader_servers}, topic, CheckpointRecords(scene.one.name), 30
        )
    )
    assert found is not None
    newer = replace(found, bindings='{"version":99}', serial=found.serial + 1).encode()
    producer = Producer({"bootstrap.servers": scene.one.reader_servers})
    producer.produce(topic, newer, scene.one.name)
    assert producer.flush(30) == 0


def a_keyless_table_with_a_compacted_topic(scene: Scene) -> None:
    scene.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    scene.topic(scene.one.topic, cleanup_policy="compact")
    scene.configure(snapshot={"mode": "initial"})


def a_topic_that_may_refuse_the_markers_of_transactions(scene: Scene) -> None:
    scene.topic(scene.one.topic, message_timestamp_before_max_ms="1000")
    scene.configure(snapshot={"mode": "initial"})


def a_lost_slot_and_a_compacted_topic(scene: Scene) -> None:
    scene.topic(scene.one.topic, cleanup_policy="compact")
    scene.configure(snapshot={"mode": "when_needed", "lost_slot": "read_again"})
    scene.one.start()
    assert scene.one.daemon.stop() == 0
    scene.one.drop_slot()


def watermarks_and_a_compacted_topic(scene: Scene) -> None:
    scene.topic(scene.one.topic, cleanup_policy="compact")
    scene.configure(heartbeat={"watermark_interval_s": 5})


def a_topic_that_differs_in_a_point(scene: Scene) -> None:
    scene.topic(f"{scene.one.name}_checkpoint")


def a_port_in_use(scene: Scene) -> None:
    taken = scene.stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
    scene.configure(http={"port": taken.getsockname()[1]})


def a_certificate_file_without_a_certificate(scene: Scene) -> None:
    scene.configure(http={"certificate_file": __file__, "key_file": __file__})


def a_secret_that_others_can_read(scene: Scene) -> None:
    file = scene.one.daemon.config_path.with_name("token")
    file.write_text("3f9c1b7a85d2e604")
    file.chmod(0o644)
    scene.configure(http={"token_file": str(file)}, security={"strict": True})


def a_token_that_can_be_guessed(scene: Scene) -> None:
    scene.configure(http={"token": "a" * 16}, security={"strict": True})


def a_currency_that_the_role_hides(scene: Scene) -> None:
    # The role may not have the session of physical replication that would show the server's default.
    server = scene.server(
        hba=("host all all 127.0.0.1/32 trust", "host replication postgres 127.0.0.1/32 trust")
    )
    server.execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER")
    server.execute(f"ALTER ROLE {ROLE} SET lc_monetary = 'C'")
    scene.configure(postgres={"dsn": server.dsn(user=ROLE, password=SECRET)})


def an_owner_without_a_reader(scene: Scene) -> None:
    _owned_by(scene, "t", "foreseen_owner")
    scene.configure(security={"strict": True})


def a_reader_that_does_not_exist(scene: Scene) -> None:
    scene.configure(postgres={"readers": [{"tables": ["public.t"], "user": READER}]})


def a_reader_that_may_replicate(scene: Scene) -> None:
    _reader(scene, "REPLICATION", tables="t")


def a_reader_of_more_than_its_tables(scene: Scene) -> None:
    scene.execute("CREATE TABLE other (id int PRIMARY KEY)")
    _reader(scene, tables="t, other")


def a_reader_of_two_owners(scene: Scene) -> None:
    scene.execute("CREATE TABLE other (id int PRIMARY KEY)")
    _reader(scene, tables="t, other", patterns=["public.*"])
    _owned_by(scene, "t", "foreseen_owner")
    _owned_by(scene, "other", "foreseen_other_owner")


def _role(scene: Scene, name: str, *options: str) -> None:
    scene.execute(f"CREATE ROLE {name} LOGIN {' '.join(options)}")
    scene.stack.callback(scene.execute, f"DROP ROLE {name}")
    scene.stack.callback(scene.execute, f"DROP OWNED BY {name}")


def _owned_by(scene: Scene, table: str, owner: str) -> None:
    _role(scene, owner)
    scene.execute(f"ALTER TABLE {table} OWNER TO {owner}")


def _reader(scene: Scene, *options: str, tables: str, patterns: Sequence[str] = ("public.t",)) -> None:
    """Configure a strict pipeline with a reader: a role that has these options and may SELECT from `tables`."""
    _role(scene, READER, *options)
    scene.execute(f"GRANT SELECT ON {tables} TO {READER}")
    readers = [{"tables": list(patterns), "user": READER}]
    scene.configure(postgres={"readers": readers}, security={"strict": True})


def a_spool_below_a_file(scene: Scene) -> None:
    scene.configure(spool={"directory": f"{__file__}/spool"})


def a_durable_log_below_a_file(scene: Scene) -> None:
    scene.configure(spool={"durable": True, "durable_directory": f"{__file__}/log"})


def a_claim_check_directory_that_is_missing(scene: Scene) -> None:
    scene.configure(kafka={"oversized": "claim_check", "claim_check_directory": "/nowhere/claims"})


def a_registry(scene: Scene, **registry: Any) -> SchemaRegistry:
    """The pipeline writes Avro, with this registry."""
    server = scene.stack.enter_context(SchemaRegistry())
    scene.configure(
        format={"value": "avro"}, registry={"url": server.url} | registry, snapshot={"mode": "initial"}
    )
    return server


def two_columns_that_are_one_name_in_avro(scene: Scene) -> None:
    a_registry(scene)
    scene.execute('ALTER TABLE t ADD "a-b" int, ADD "a b" int')


def a_registry_that_refuses_the_token(scene: Scene) -> None:
    a_registry(scene).login = "Bearer another"


def a_registry_that_takes_no_schemas(scene: Scene) -> None:
    a_registry(scene).mode = "READONLY"


def a_registry_that_takes_no_protobuf(scene: Scene) -> None:
    a_registry(scene).kinds = ["AVRO"]
    scene.configure(format={"value": "protobuf"})


def a_registry_certificate_file_without_a_certificate(scene: Scene) -> None:
    folder: Path = scene.request.getfixturevalue("tmp_path")
    (folder / "ca.pem").write_text("no certificate")
    a_registry(scene, url="https://127.0.0.1:1", ca_file=str(folder / "ca.pem"))


SCENARIOS: Final[dict[Callable[[Scene], None], tuple[int, str, str]]] = {
    wrong_password: (3, "postgres.refused", "Check role and password"),
    no_such_database: (3, "postgres.refused", "Correct the database name in postgres.dsn"),
    no_server: (3, "postgres.unreachable", "Check that PostgreSQL runs there"),
    no_such_service: (2, "postgres.setting", "Check service and servicefile in postgres.dsn"),
    no_replication_right: (3, "server.replication", f"ALTER ROLE {ROLE} REPLICATION"),
    a_standby: (3, "server.standby", "Point postgres.dsn at the primary"),
    an_old_server: (2, "server.version", "Take postgres.protocol out of the configuration"),
    failover_before_17: (2, "slot.failover", "failover: false"),
    wal_level_replica: (3, "wal.level", "ALTER SYSTEM SET wal_level = 'logical'"),
    no_free_slot: (3, "slot.capacity", "Drop an unused slot"),
    no_free_walsender: (3, "wal.senders", "nd unused WAL senders"),
    no_right_to_publish: (3, "publication.state", "CREATE PUBLICATION cdcd_{name} FOR ALL TABLES"),
    no_such_table: (3, "publication.state", "Check schema, name and case"),
    a_slot_of_another_plugin: (3, "slot.state", "Choose another name in postgres.slot"),
    a_slot_in_use: (3, "slot.active", "pg_terminate_backend"),
    a_dropped_slot: (6, "position.state", "--accept-gap"),
    a_publication_made_anew_behind_the_slot: (3, "publication.age", "`cdcd reset --yes`"),
    a_publication_that_no_longer_publishes_by_the_root: (
        6,
        "position.state",
        "ALTER PUBLICATION cdcd_{name} SET (publish_via_partition_root = true);",
    ),
    no_select: (3, "table.select", f"GRANT SELECT ON public.t TO {ROLE}"),
    too_few_connections_of_the_role: (3, "server.connections", f"ALTER ROLE {ROLE} CONNECTION LIMIT"),
    too_few_connections_of_the_database: (
        3,
        "server.connections",
        "ALTER DATABASE {database} CONNECTION LIMIT",
    ),
    no_right_to_emit_messages: (
        3,
        "snapshot.watermark",
        f"GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean,text,text,boolean) TO {ROLE}",
    ),
    no_usage: (3, "table.select", f"GRANT USAGE ON SCHEMA closed TO {ROLE}"),
    no_select_on_a_partition: (3, "table.select", f"GRANT SELECT ON public.p_1 TO {ROLE}"),
    row_level_security: (3, "table.policy", f"ALTER ROLE {ROLE} BYPASSRLS"),
    a_keyless_table_and_a_slot_that_is_older: (3, "table.key", "snapshot.exclude: [public.t]"),
    a_keyless_table_read_incrementally: (3, "table.key", "Add a primary key to public.t"),
    a_mask_for_a_key_column: (2, "columns.rule", "Use columns.hash or columns.encrypt for public.t.id"),
    a_key_whose_former_values_are_not_sent: (2, "key.columns", "REPLICA IDENTITY FULL"),
    a_partition_by_what_postgresql_does_not_send: (2, "partitioner.columns", "REPLICA IDENTITY FULL"),
    a_partition_by_a_protected_column: (
        2,
        "partitioner.columns",
        "Choose the partitions of public.t by other columns",
    ),
    a_computed_field_that_does_not_fit: (2, "fields.rule", "Correct fields.tables.public.t.computed"),
    a_bare_key_of_two_columns: (2, "key.columns", "narrow the pattern to tables whose key has one column"),
    two_fields_with_one_name: (2, "fields.rule", "rename: {{customer: customer_2}}"),
    a_partition_that_does_not_send_the_key: (
        2,
        "key.partitions",
        "ALTER TABLE public.part REPLICA IDENTITY FULL;",
    ),
    a_filter_over_what_a_partition_does_not_send: (
        2,
        "filters.rule",
        "ALTER TABLE public.part REPLICA IDENTITY FULL;",
    ),
    a_chosen_key_and_a_slot_that_is_older: (3, "table.key", "snapshot.exclude: [public.t]"),
    two_rules_for_a_column: (2, "columns.rule", "Narrow one of the patterns"),
    an_outbox_table_without_a_column_of_events: (
        2,
        "outbox.source",
        "Name the table's columns in outbox.tables",
    ),
    a_filter_over_what_postgresql_does_not_send: (
        2,
        "filters.rule",
        "ALTER TABLE public.t REPLICA IDENTITY FULL; Or set filters.tables.public.t.old_row: assumed",
    ),
    a_filter_that_does_not_fit_its_table: (2, "filters.rule", "Correct filters.tables.public.*.keep"),
    routes_over_what_postgresql_does_not_send: (
        2,
        "routes.rule",
        "ALTER TABLE public.t REPLICA IDENTITY FULL; Or set routes.tables.public.t.old_row: assumed",
    ),
    routes_that_do_not_fit_their_table: (2, "routes.rule", "Correct routes.tables.public.t.rules"),
    a_route_to_a_topic_that_nobody_creates: (
        4,
        "topic.missing",
        "--create --topic {name}.public.t-eu",
    ),
    a_route_to_the_topic_of_another_table: (4, "topic.name", "Give one of them another topic"),
    two_columns_that_are_one_name_in_avro: (2, "format.table", "Rename one of the two columns"),
    a_registry_that_refuses_the_token: (
        4,
        "registry.refused",
        "Correct registry.user and its password, or the token",
    ),
    a_registry_that_takes_no_schemas: (
        4,
        "registry.mode",
        "set registry.register_schemas: false",
    ),
    a_registry_that_takes_no_protobuf: (
        4,
        "registry.types",
        "se a registry that takes PROTOBUF, or another",
    ),
    a_registry_certificate_file_without_a_certificate: (2, "registry.setting", "All must be PEM files"),
    tables_with_one_topic: (4, "topic.name", "topics.names: "),
    a_template_that_does_not_tell_tables_apart: (4, "topic.name", "Give one of them another topic"),
    a_table_name_with_a_point_under_a_name_template: (
        4,
        "topic.name",
        "Give it a topic of its own, as topics.names: ",
    ),
    no_broker: (4, "kafka.unreachable", "Check that the broker runs"),
    brokers_at_postgresqls_port: (4, "kafka.refused", "PostgreSQL listens there, not Kafka"),
    wrong_sasl_password: (4, "kafka.refused", "Check sasl.mechanism, sasl.username, sasl.password"),
    an_unknown_property: (2, "kafka.property", "Correct the name or the value in kafka.properties"),
    a_wrong_value_of_the_producers: (2, "kafka.property", "Correct the name or the value"),
    a_batch_size_that_is_not_a_number: (2, "kafka.property", "Correct the name or the value"),
    a_wrong_value_of_the_connections: (2, "kafka.property", "Correct the name or the value"),
    a_transaction_longer_than_the_broker_allows: (
        4,
        "transaction.timeout",
        "raise transaction.max.timeout.ms",
    ),
    more_replicas_than_brokers: (4, "topic.missing", "Correct topics.create"),
    a_setting_of_topics_that_does_not_exist: (4, "topic.missing", "Correct topics.create.config"),
    topics_that_nobody_creates: (4, "topic.missing", "--create --topic {name}.checkpoint"),
    a_tables_topic_that_nobody_creates: (4, "topic.missing", "--create --topic {name}.public.t"),
    no_rights_on_topics: (4, "topic.rights", "--allow-principal User:cdcd --operation Write"),
    no_right_to_create_topics: (4, "topic.missing", "--operation Create --topic {name}. "),
    no_right_to_write_to_topics: (4, "topic.rights", "--operation Write --operation Create --topic {name}. "),
    no_right_to_write_to_topics_that_do_not_exist: (
        4,
        "topic.rights",
        "--operation Write --operation Create --topic {name}. ",
    ),
    no_right_to_write_to_a_tables_topic: (4, "topic.rights", "--operation Write"),
    no_right_to_read_the_checkpoint: (4, "topic.rights", "--operation Read --topic {name}.checkpoint"),
    no_right_on_the_transactional_id: (
        4,
        "transaction.id",
        "--operation Write --transactional-id cdcd-{name}",
    ),
    a_checkpoint_that_is_not_compacted: (4, "topic.checkpoint", "--add-config cleanup.policy=compact"),
    a_checkpoint_of_another_pipeline: (4, "topic.checkpoint", "topics.checkpoint"),
    the_prefix_of_another_pipeline: (
        4,
        "topic.checkpoint",
        "Give pipeline {name}_2 a topics.prefix of its own",
    ),
    a_checkpoint_that_does_not_say_which_columns_are_protected: (
        6,
        "position.state",
        "Start the version of cdcd that wrote the checkpoint",
    ),
    the_transactional_id_of_another_pipeline: (
        7,
        "transaction.id",
        "Set kafka.transactional_id: cdcd-{name}-2 for one of the two pipelines",
    ),
    a_lost_slot_and_a_compacted_topic: (4, "topic.compacted", "topics.truncate: false"),
    watermarks_and_a_compacted_topic: (4, "topic.keyless", "or set heartbeat.watermark_interval_s: 0"),
    a_topic_that_may_refuse_the_markers_of_transactions: (
        4,
        "topic.markers",
        "--add-config message.timestamp.before.max.ms=60000",
    ),
    a_keyless_table_with_a_compacted_topic: (4, "topic.keyless", "--add-config cleanup.policy=delete"),
    a_topic_that_differs_in_a_point: (4, "topic.missing", "topics.prefix"),
    a_port_in_use: (2, "http.port", "Set http.port to another"),
    a_certificate_file_without_a_certificate: (2, "http.certificate", "Both must be PEM files"),
    a_secret_that_others_can_read: (2, "secret.file", "(mode 0600)"),
    a_token_that_can_be_guessed: (2, "secret.weak", "openssl rand -hex 32"),
    a_currency_that_the_role_hides: (2, "server.money", f"ALTER ROLE {ROLE} RESET lc_monetary"),
    an_owner_without_a_reader: (2, "reader.missing", "trusted_owners: [foreseen_owner]"),
    a_reader_that_does_not_exist: (3, "reader.connect", f"CREATE ROLE {READER} LOGIN"),
    a_reader_that_may_replicate: (2, "reader.rights", f"ALTER ROLE {READER} NOREPLICATION"),
    a_reader_of_more_than_its_tables: (2, "reader.tables", "REVOKE SELECT ON public.other FROM"),
    a_reader_of_two_owners: (2, "reader.shared", "Give each owner a reader"),
    a_spool_below_a_file: (8, "spool.directory", "or change spool.directory"),
    a_durable_log_below_a_file: (8, "spool.durable", "spool.durable_directory"),
    a_claim_check_directory_that_is_missing: (8, "claim_check.directory", "kafka.claim_check_directory"),
}

WAITING: Final = (wrong_sasl_password, brokers_at_postgresqls_port)
"""Causes that a start finds out by waiting for a broker, as it does without a broker."""
"""What is broken: the exit code of `cdcd run`, the code of the finding, and words of the cure in both."""

ELSEWHERE: Final = {
    "context.source": "only PostgreSQL 13 sends no messages: test_context.py",
    "otlp.library": "tests/unit/telemetry/test_otlp.py: the environment of the tests has the extra",
    "claim_check.store": "it needs a store: test_claim_store.py",
    "machine.files": "both processes need a limit of their own: test_bad_input_limits.py",
    "snapshot.query": "five bad queries: test_snapshot_queries.py",
    "registry.unreachable": "a registry that is away is waited for: test_avro.py",
    "topic.claimed": "it needs a second pipeline: test_own_topics.py",
    "topic.leader": "a broker that is down is waited for; one broker has all leaders",
    "transaction.log": "test_check.py; cdcd run waits for its answer for a minute",
    "start.refused": "what no other code tells: nothing that is known",
}


@pytest.fixture
def scene(
    trial: Callable[..., Trial], database: Database, broker: KafkaBroker, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    with ExitStack() as stack:
        one = trial(database.dsn(), broker.bootstrap_servers)
        # The documented default: requests for snapshots need a token.
        one.configure(snapshot={"signals_from": None})
        one.insert(1)
        yield Scene(one, database, request, stack)
        one.daemon.kill()


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(broken, id=broken.__name__, marks=[pytest.mark.long] if broken in WAITING else [])
        for broken in SCENARIOS
    ],
)
def test_what_ends_a_run_is_foreseen_with_the_same_cure(broken: Callable[[Scene], None], scene: Scene):
    exit_code, code, cure = SCENARIOS[broken]
    one = scene.one

    # GIVEN what is broken
    broken(scene)

    # WHEN it is checked, THEN there is the finding, nothing is said beside the report, and nothing is changed
    topics = set(one.topics())
    check = one.check()
    found = [finding for finding in check.errors() if finding["code"] == code]
    assert found, check.findings
    assert check.code in (10, exit_code)
    assert one.said[-1] == ""
    assert {topic for topic in set(one.topics()) - topics if not topic.startswith("__")} == set()

    # AND WHEN it runs all the same
    said = one.fail(timeout_s=90)

    # THEN it ends as the table of codes says, and names the same cure
    assert said.code == exit_code, said.output
    assert exit_code in CODES[code].exits
    cure = cure.format(name=one.name, database=scene.database.name)
    assert cure in said.hint.replace('"', ""), said
    assert any(cure in finding["fix"].replace('"', "") for finding in found), found
    assert most_repeated(said.output) <= 1


def most_repeated(output: str) -> int:
    """How often librdkafka said the same, but for numbers."""
    lines = [re.sub(r"[0-9]+", "", line) for line in output.splitlines() if '"librdkafka"' in line]
    kinds = [re.sub(r"\[thrd:[^]]*\]|\(after[^)]*\)", "", line) for line in lines]
    return max(map(kinds.count, kinds), default=0)


def test_every_code_that_foresees_an_end_has_a_scenario():
    foreseen = {code for _, code, _ in SCENARIOS.values()}
    assert {name for name, code in CODES.items() if code.exits} == foreseen | set(ELSEWHERE)


def test_a_healthy_pipeline_gets_no_warning(scene: Scene):
    one = scene.one
    scene.configure(snapshot={"mode": "initial"}, http={"port": free_port()})

    # GIVEN nothing but a server of which nobody has said how much WAL a slot may keep
    assert [one["code"] for one in problems(scene)] == ["wal.keep"]

    # WHEN it runs, THEN nothing is amiss, meanwhile and afterwards
    one.start()
    one.insert(2)
    one.expect(1, 2)
    assert problems(scene) == []
    assert one.daemon.is_running()
    one.stop()
    assert problems(scene) == []


def problems(scene: Scene) -> list[dict[str, str]]:
    """Return warnings and errors, except that cdcd is not compiled, which depends on the test run only."""
    expected = [] if is_compiled() else ["machine.compiled"]
    found = [finding for finding in scene.one.check().findings if finding["level"] in {"warning", "error"}]
    assert [each["code"] for each in found if each["code"] == "machine.compiled"] == expected
    return [each for each in found if each["code"] != "machine.compiled"]


def test_a_pipeline_with_the_documented_rights_gets_no_warning(scene: Scene):
    scene.guarded(*topic_rights(scene), transactional(scene))
    scene.one.start()
    assert problems(scene) == []
    assert scene.one.daemon.stop() == 0
    assert problems(scene) == []


def test_the_cure_for_a_connection_limit_is_enough(scene: Scene):
    scene.as_role(f"ALTER ROLE {ROLE} CONNECTION LIMIT 2", f"GRANT SELECT ON t TO {ROLE}")
    scene.configure(snapshot={"mode": "initial"})
    (found,) = [one for one in scene.one.check().errors() if one["code"] == "server.connections"]
    assert found["fix"] == f'ALTER ROLE "{ROLE}" CONNECTION LIMIT 9;'
    scene.execute(found["fix"])
    assert not scene.one.check().errors()
    scene.one.start()
    assert scene.one.daemon.stop() == 0


def test_the_cure_for_messages_that_may_not_be_written_works(scene: Scene):
    no_right_to_emit_messages(scene)
    (found,) = [one for one in scene.one.check().errors() if one["code"] == "snapshot.watermark"]
    scene.execute(found["fix"])
    assert not scene.one.check().errors()
    scene.one.start()
    scene.one.expect(1)
    assert scene.one.daemon.stop() == 0


def test_a_right_that_kafka_does_not_tell_is_not_called_in_order(scene: Scene):
    # GIVEN a principal that may create and describe topics, and not write to them
    scene.guarded(
        *topic_rights(scene, AclOperation.WRITE),
        (ResourceType.TOPIC, f"{scene.one.name}.", AclOperation.DESCRIBE),
        transactional(scene),
    )
    check = scene.one.check()
    found = [one for one in check.findings if one["code"] == "topic.write"]
    assert {one["level"] for one in found} == {"unknown"}
    assert any(f"{scene.one.name}.checkpoint" in one["found"] for one in found)
    assert not check.errors()
    # WHEN it runs, THEN it ends by what was not checked, and the fix of the finding is its cure
    said = scene.one.fail(timeout_s=90)
    assert said.code == 4
    for text in (said.hint, *(one["fix"] for one in found)):
        assert f"--operation Write --operation Create --topic {scene.one.name}. " in text, text


def test_without_rules_of_access_nothing_is_left_unchecked(scene: Scene):
    assert [one for one in scene.one.check().findings if one["level"] == "unknown"] == []


def test_of_300_tables_a_screen_tells_what_matters(scene: Scene):
    with psycopg.connect(scene.database.dsn(), autocommit=True) as connection:
        for number in range(300):
            connection.execute(f"CREATE TABLE of_the_shop_{number} (id int PRIMARY KEY)")
    scene.execute("CREATE TABLE keyless (id int)")
    scene.one.daemon.write_config()
    said = command("check", "--config", str(scene.one.daemon.config_path))
    lines = said.stdout.splitlines()
    assert (said.returncode, said.stderr) == (0, "")
    assert "table.identity" in lines[0]
    assert len(lines) < 30
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []
    # Without compiled code, there is a third warning.
    warnings = 2 if is_compiled() else 3
    assert lines[-1] == f"0 errors, {warnings} warnings, {lines[-1].split()[-3]} in order"


def test_a_broker_that_is_away_makes_no_noise(scene: Scene):
    no_broker(scene)
    scene.one.daemon.write_config()
    said = command("check", "--config", str(scene.one.daemon.config_path))
    assert (said.returncode, said.stderr) == (4, "")
    # The warning about code that is not compiled has three lines.
    assert len(said.stdout.splitlines()) < (25 if is_compiled() else 28)


# The cures of common mistakes, followed as they are printed. A full disk under the spool is in
# test_bad_input_limits.py, where the test enlarges the file system, as the hint says.

KAFKA_ACLS: Final = '''#!{python}
"""kafka-acls with the options that cdcd prints, at the listener of the administrator."""
import argparse
from confluent_kafka.admin import (AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType,
    ResourceType)
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--bootstrap-server", required=True, choices=["{named}"])
parser.add_argument("--add", action="store_true", required=True)
parser.add_argument("--allow-principal", required=True)
parser.add_argument("--operation", action="append", required=True)
parser.add_argument("--resource-pattern-type", default="literal", choices=["literal", "prefixed"])
of = parser.add_mutually_exclusive_group(required=True)
of.add_argument("--topic")
of.add_argument("--transactional-id")
given = parser.parse_args()
admin = AdminClient({{"bootstrap.servers": "{admin}"}})
kind = ResourceType.TOPIC if given.topic else ResourceType.TRANSACTIONAL_ID
for operation in given.operation:
    binding = AclBinding(kind, given.topic or given.transactional_id,
        ResourcePatternType[given.resource_pattern_type.upper()], given.allow_principal, "*",
        AclOperation[operation.upper()], AclPermissionType.ALLOW)
    for done in admin.create_acls([binding]).values():
        done.result(60)
'''


def _psql(dsn: str, fix: str) -> None:
    """Paste the first SQL command of the fix into psql, as a superuser."""
    command = re.search(r"\b(?:ALTER|CREATE|GRANT|SELECT) [^;]+;", fix)
    assert command, fix
    arguments = ["-X", "-v", "ON_ERROR_STOP=1", "-d", dsn]
    subprocess.run([client_program("psql"), *arguments], input=command[0], text=True, check=True)


def _sql(scene: Scene, fix: str) -> None:
    _psql(scene.database.dsn(), fix)


def _sql_and_restart(scene: Scene, fix: str) -> None:
    assert "then restart PostgreSQL" in fix
    server = scene.servers[-1]
    _psql(server.dsn(), fix)
    server.restart()


def _right_password(scene: Scene, fix: str) -> None:
    assert "Check role and password" in fix
    scene.configure(postgres={"dsn": scene.servers[-1].dsn(user="cdcd", password="r1ght-5ecret")})
    scene.one.secrets.append("r1ght-5ecret")


def _running_broker(scene: Scene, fix: str) -> None:
    assert "Check that the broker runs" in fix
    scene.configure(kafka={"bootstrap_servers": scene.one.reader_servers})


def _acls(scene: Scene, fix: str) -> None:
    """Paste the commands into a shell."""
    folder: Path = scene.request.getfixturevalue("tmp_path")
    program = folder / "kafka-acls"
    named = scene.one.daemon.config["kafka"]["bootstrap_servers"]
    program.write_text(KAFKA_ACLS.format(python=sys.executable, named=named, admin=scene.one.reader_servers))
    program.chmod(0o755)
    search = os.pathsep.join([str(folder), os.environ["PATH"]])
    subprocess.run(["sh", "-e", "-c", fix], env={**os.environ, "PATH": search}, check=True)


FOLLOWED: Final[dict[Callable[[Scene], None], Callable[[Scene, str], None]]] = {
    wrong_password: _right_password,
    wal_level_replica: _sql_and_restart,
    no_replication_right: _sql,
    no_right_to_publish: _sql,
    no_broker: _running_broker,
    no_right_on_the_transactional_id: _acls,
    no_rights_on_topics: _acls,
    a_slot_in_use: _sql,
}
"""Who follows the cure of each mistake."""


@pytest.mark.parametrize("broken", list(FOLLOWED), ids=lambda broken: broken.__name__)
def test_the_cure_of_a_common_mistake_helps_as_it_is_printed(broken: Callable[[Scene], None], scene: Scene):
    one, code = scene.one, SCENARIOS[broken][1]
    # GIVEN a common mistake
    broken(scene)
    # WHEN the fix of each finding is followed, once
    found = one.check().errors()
    assert code in {finding["code"] for finding in found}
    for fix in dict.fromkeys(finding["fix"] for finding in found):
        FOLLOWED[broken](scene, fix)
    # THEN the finding is gone, and the pipeline streams
    until(lambda: one.check().errors() == [] or None, f"{code} is still found")
    one.start()
    assert one.daemon.stop() == 0
