"""`cdcd adopt` asks PostgreSQL what a connector's transforms depend on: columns, keys, types, tables."""

import asyncio

import psycopg
import pytest
import yaml

from cdcd.adapters.postgres.connection import connect, parse_dsn
from cdcd.adapters.postgres.slot import create_slot_by_sql
from cdcd.tools.adopt import settings
from cdcd.tools.adopt.adoption import adopt, look_at_database
from cdcd.tools.adopt.verdicts import VerdictKind
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.unit.tools.adopt.transforms_examples import CONNECT, UNWRAP, connector, topic_predicate


@pytest.mark.postgres(only=[18])
def test_keys_types_and_todays_tables_decide_what_is_written(database: Database):
    # GIVEN tables with a key, a text, a number and an enum, of which the connector captures two
    database.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, email text, total int, mood mood)")
    database.execute("CREATE TABLE customers (id int PRIMARY KEY, email varchar(80))")
    database.execute("CREATE TABLE secrets (email text PRIMARY KEY, total text)")
    database.execute("CREATE PUBLICATION dbz_publication FOR ALL TABLES")
    parameters = dict(part.split("=", 1) for part in database.dsn().split())
    mask = {"type": f"{CONNECT}MaskField$Value", "replacement": "x"}
    rename = {"type": f"{CONNECT}ReplaceField$Value", "replace.null.with.default": "false"}
    options = connector(
        {"type": UNWRAP},
        {**mask, "fields": "email"},
        {**mask, "fields": "total"},
        {**rename, "renames": "total:sum"},
        {**rename, "renames": "id:number"},
        {
            "type": f"{CONNECT}RegexRouter",
            "regex": r"inventory\.public\.(orders)",
            "replacement": "inventory.new.$1",
        },
        {"type": f"{CONNECT}InsertHeader", "predicate": "p"},
        table__include__list=r"public\.(orders|customers)",
        database__hostname=parameters["host"],
        database__port=parameters["port"],
        database__user=parameters["user"],
        database__dbname=parameters["dbname"],
        column__exclude__list=r"PUBLIC\.orders\.MOOD",
        **topic_predicate(r"inventory\.public\.(orders|x)"),
    )
    # WHEN it is adopted
    found = adopt(options, {"kafka.bootstrap_servers": "kafka:9092"}, "f", look=look_at_database)
    assert found.not_asked is None
    kinds = {
        each.name.split(".")[1]: each.verdict.kind for each in found.findings if each.name.endswith(".type")
    }
    # THEN numbers are not masked, and a column of a key is not renamed; secrets, which nobody captures, do not count
    assert kinds["a"] is VerdictKind.SAME
    assert (kinds["b"], kinds["c"]) == (VerdictKind.DIFFERENT, VerdictKind.IMPOSSIBLE)
    # The predicate of the last transform sees the topic that the router gave, so it selects no table.
    assert (kinds["e"], kinds["g"]) == (VerdictKind.IMPOSSIBLE, VerdictKind.IRRELEVANT)
    # AND what is written is what cdcd takes
    written = yaml.safe_load(settings.as_text(found.settings, ()))
    assert written["columns"] == {"exclude": ["public.orders.mood"], "mask": {"*.*.email": "x"}}
    assert written["fields"] == {"tables": {"*.*": {"rename": {"total": "sum"}}}}
    assert written["topics"]["rename"] == [
        {"regex": r"inventory\.public\.(orders)", "replacement": "inventory.new.$1"}
    ]


def test_beside_a_slot_of_another_plugin_the_server_takes_publication_and_slot(database: Database) -> None:
    # GIVEN a connector whose slot only its plugin can read
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY); CREATE TABLE secrets (id bigint PRIMARY KEY)"
    )
    parameters = psycopg.conninfo.conninfo_to_dict(database.dsn())
    options = connector(
        plugin__name="decoderbufs",
        table__include__list=r"public\.orders",
        **{f"database__{option}": str(parameters[name]) for option, name in _CONNECTION.items()},
    )
    # WHEN it is adopted, and its publication and slot are created as the command says
    found = adopt(options, {"kafka.bootstrap_servers": "kafka:9092"}, "f", look=look_at_database)
    assert found.blocking == []
    assert found.narrowing is not None
    database.execute(found.narrowing.statement)
    asyncio.run(_create_slot(database, found.config.postgres.slot))
    # THEN the slot sends the captured table by the publication
    database.execute("INSERT INTO orders VALUES (1); INSERT INTO secrets VALUES (1)")
    sent = database.execute(
        "SELECT chr(get_byte(data, 0)) FROM pg_logical_slot_peek_binary_changes("
        f"'{found.config.postgres.slot}', NULL, NULL, 'proto_version', '1', "
        f"'publication_names', '{found.config.postgres.publication}')"
    )
    assert [tag for (tag,) in sent if tag in "RI"] == ["R", "I"]


_CONNECTION = {"hostname": "host", "port": "port", "user": "user", "dbname": "dbname"}


async def _create_slot(database: Database, name: str) -> None:
    connection = await connect(parse_dsn(database.dsn()), application_name="test", connect_timeout_s=10)
    try:
        await create_slot_by_sql(connection, name, failover=False)
    finally:
        await connection.close()


def test_topics_of_events_come_from_rows_and_from_kafka(
    database: Database, broker: KafkaBroker, unique: str
) -> None:
    # GIVEN an outbox with a row, a topic of events that went before it, and an outbox with a policy of its owner's
    columns = "id int PRIMARY KEY, aggregatetype text, aggregateid text, payload text"
    database.execute(
        f"CREATE TABLE outbox ({columns}); INSERT INTO outbox VALUES (1, 'Order', 'a', 'b'); "
        f"CREATE TABLE other ({columns}); INSERT INTO other VALUES (1, 'Secret', 'a', 'b'); "
        "CREATE FUNCTION public.ran() RETURNS bool LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'it ran'; END$$; "
        "ALTER TABLE other ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON other USING (public.ran()); "
        f"CREATE ROLE {unique} LOGIN; GRANT SELECT ON outbox, other TO {unique}; "
        "CREATE PUBLICATION dbz_publication FOR TABLE outbox, other"
    )
    create_topics(broker.bootstrap_servers, f"{unique}.Payment")
    parameters = psycopg.conninfo.conninfo_to_dict(database.dsn())
    options = connector(
        {
            "type": "io.debezium.transforms.outbox.EventRouter",
            "route.topic.replacement": f"{unique}.${{routedByValue}}",
        },
        **{
            f"database__{option}": unique if option == "user" else str(parameters[name])
            for option, name in _CONNECTION.items()
        },
    )
    # WHEN the connector is adopted by a role for which the policy holds
    found = adopt(options, {"kafka.bootstrap_servers": broker.bootstrap_servers}, "f", look=look_at_database)
    # THEN the list has the topic of the row and the existing one, and the policy has not run
    assert found.not_asked is None
    assert found.blocking == []
    assert found.config.outbox.topics == (f"{unique}.Order", f"{unique}.Payment")
    assert sorted(found.config.outbox.tables) == ["public.other", "public.outbox"]
