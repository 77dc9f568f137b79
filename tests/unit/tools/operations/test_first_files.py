import re
from dataclasses import replace

import pytest

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.publication import PublishedTable
from cdcd.adapters.postgres.readers import Owned
from cdcd.adapters.postgres.surroundings import Surroundings, dsn_for
from cdcd.config.loading import parse_config
from cdcd.config.types import NAME_LENGTH_MAX
from cdcd.core.errors import ConfigError
from cdcd.tools.operations import first_files
from cdcd.tools.operations.first_files import (
    READER_PASSWORD,
    Answers,
    configuration,
    name_for,
    passwords,
    psql,
    statements,
    steps,
    warnings,
)

ANSWERS = Answers(
    "shop",
    "host=db user=cdcd dbname=shop",
    "cdcd",
    ("public.*", '"a.b".*'),
    "k1:9092,k2:9092",
    2,
    "host=db user=ann dbname=shop",
)


def table(name: str, *, key: bool = True) -> PublishedTable:
    return PublishedTable(1, "public", name, "d", key, key)


FOUND = Surroundings(
    version=18,
    database="shop",
    wal_level="logical",
    is_rds=False,
    has_role=False,
    may_replicate=False,
    has_publication=False,
    tables=(table("orders"), table("Odd Name")),
    readable=("public.orders", 'public."Odd Name"'),
    secured=(),
)


def sql(found: Surroundings = FOUND, **changes: object) -> str:
    return statements(ANSWERS, replace(found, **changes), "cdcd.sql")  # type: ignore[arg-type]


def test_the_configuration_is_one_that_cdcd_takes():
    config = parse_config(configuration(ANSWERS, FOUND), {})
    assert config.name == "shop"
    assert config.postgres.tables == ("public.*", '"a.b".*')
    assert config.kafka.bootstrap_servers == "k1:9092,k2:9092"
    assert config.topics.create.replication_factor == 2


@pytest.mark.parametrize(("brokers", "replicas"), [(None, 1), (1, 1), (3, 3), (9, 3)])
def test_topics_have_as_many_replicas_as_there_are_brokers_up_to_three(brokers, replicas):
    config = parse_config(configuration(replace(ANSWERS, brokers=brokers), FOUND), {})
    assert config.topics.create.replication_factor == replicas


def test_an_answer_that_cdcd_refuses_is_refused_before_a_file_is_written():
    wrong = replace(ANSWERS, name="Big Shop")
    with pytest.raises(ConfigError, match="lower-case"):
        first_files.check_text(configuration(wrong, FOUND), wrong)


@pytest.mark.parametrize(
    ("database", "name"),
    [("shop", "shop"), ("Shop-EU", "shop_eu"), ("_x", "x"), ("Ü", "cdcd"), ("a" * 99, "a" * NAME_LENGTH_MAX)],
)
def test_a_pipeline_is_named_after_its_database(database, name):
    assert name_for(database) == name


def test_the_sql_has_role_rights_and_publication():
    assert [line for line in sql().splitlines() if line and not line.startswith("--")] == [
        "\\set ON_ERROR_STOP on",
        "CREATE ROLE \"cdcd\" LOGIN REPLICATION PASSWORD :'password';",
        'GRANT CONNECT ON DATABASE "shop" TO "cdcd";',
        'GRANT USAGE ON SCHEMA "public" TO "cdcd";',
        'GRANT SELECT ON public.orders, public."Odd Name"',
        '  TO "cdcd";',
        'CREATE PUBLICATION "cdcd_shop" FOR TABLE "public"."orders", "public"."Odd Name"',
        "  WITH (publish_via_partition_root = true);",
    ]


@pytest.mark.parametrize(
    ("changes", "there", "gone"),
    [
        ({"wal_level": "replica"}, "ALTER SYSTEM SET wal_level = 'logical';\nSELECT pg_reload_conf();", ""),
        ({"wal_level": "replica", "restart_pending": True}, "It is set, and waits", "ALTER SYSTEM"),
        ({"wal_level": "replica", "is_rds": True}, "rds.logical_replication = 1", "ALTER SYSTEM"),
        ({"is_rds": True}, 'GRANT rds_replication TO "cdcd";', "LOGIN REPLICATION"),
        ({"has_role": True}, 'ALTER ROLE "cdcd" REPLICATION;', "CREATE ROLE"),
        ({"has_role": True, "may_replicate": True}, "exists, and may replicate", "ALTER ROLE"),
        ({"has_publication": True}, "\\dRp+ cdcd_shop", "CREATE PUBLICATION"),
        ({"secured": ("public.orders",)}, '-- ALTER ROLE "cdcd" BYPASSRLS;', ""),
        (
            {"tables": (table("loose", key=False),)},
            '-- ALTER PUBLICATION "cdcd_shop" ADD TABLE "public"."loose";',
            "FOR TABLE",
        ),
        (
            {"tables": (table("loose", key=False),)},
            '-- ALTER TABLE "public"."loose" REPLICA IDENTITY FULL;',
            "FOR TABLE",
        ),
        ({"tables": (table("loose", key=False), table("orders"))}, 'FOR TABLE "public"."orders"\n', ""),
        ({"tables": (table("loose", key=False),), "has_publication": True}, "exists. Compare", "loose"),
    ],
)
def test_the_sql_follows_what_is_there(changes, there, gone):
    text = sql(**changes)
    assert there in text
    assert not gone or gone not in text


def test_a_name_with_a_line_break_does_not_end_a_comment():
    text = sql(
        tables=(table("a\nDROP", key=False),),
        database="x\nDROP",
        secured=("public.a\nDROP",),
        wal_level="replica",
    )
    # What is quoted may go on in the next line.
    unquoted = re.sub(r'"[^"]*"', "", text)
    assert "\nDROP" not in unquoted


def test_no_secret_goes_into_the_configuration():
    dsn = parse_dsn("postgresql://admin:hunter2@db:5433/shop?sslmode=require&sslpassword=hunter3")
    shown = dsn_for(dsn, "shop", "cdcd")
    assert "hunter" not in shown
    assert parse_dsn(shown).get("user") == "cdcd"
    assert parse_dsn(shown).get("sslmode") == "require"
    of_admin = dsn_for(dsn, "shop")
    assert "hunter" not in of_admin
    assert [parse_dsn(of_admin).get(name) for name in ("host", "port", "user")] == ["db", "5433", "admin"]


def test_files_that_are_there_are_not_overwritten_and_none_is_written_then(tmp_path):
    there, other = tmp_path / "cdcd.yaml", tmp_path / "cdcd.sql"
    there.write_text("mine")
    with pytest.raises(ConfigError, match="nothing was written"):
        first_files.write({other: "new", there: "new"}, force=False)
    assert (there.read_text(), other.exists()) == ("mine", False)
    first_files.write({other: "new", there: "new"}, force=True)
    assert there.read_text() == "new"
    with pytest.raises(ConfigError, match="Cannot write"):
        first_files.write({tmp_path / "none" / "x": ""}, force=False)


def test_many_tables_stand_in_lines_that_can_be_read():
    text = sql(readable=tuple(f"public.table_{number:04}" for number in range(300)))
    assert max(map(len, text.splitlines())) < 130
    assert text.count("public.table_") == 300


def owned(schema: str, name: str, owner: str, *, superuser: bool = False) -> Owned:
    return Owned((schema, name), (schema, name), owner, superuser, f"{schema}.{name}")


OF_OWNERS = replace(
    FOUND,
    tables=(table("orders"), PublishedTable(2, "crm", "people", "d", True, True)),
    readable=("public.orders", "crm.people"),
    owned=(owned("public", "orders", "postgres", superuser=True), owned("crm", "people", "ann")),
)


def test_each_owner_that_is_no_superuser_gets_a_reader_with_the_rights_on_its_tables_alone():
    text = sql(OF_OWNERS)
    assert '-v password="$CDCD_POSTGRES__PASSWORD" -v reader_password="$CDCD_READER_PASSWORD"' in text
    statements = [line for line in text.splitlines() if line and not line.startswith("--")]
    assert statements[3:9] == [
        'GRANT USAGE ON SCHEMA "public" TO "cdcd";',
        "GRANT SELECT ON public.orders",
        '  TO "cdcd";',
        "CREATE ROLE \"cdcd_reads_ann\" LOGIN PASSWORD :'reader_password';",
        'GRANT CONNECT ON DATABASE "shop" TO "cdcd_reads_ann";',
        'GRANT USAGE ON SCHEMA "crm" TO "cdcd_reads_ann";',
    ]
    assert statements[9] == 'GRANT SELECT ON "crm"."people" TO "cdcd_reads_ann";'
    (reader,) = parse_config(configuration(ANSWERS, OF_OWNERS), {READER_PASSWORD: "x"}).postgres.readers
    assert reader.password is not None
    assert (reader.tables, reader.user) == (("crm.people",), "cdcd_reads_ann")


def test_a_reader_that_exists_is_not_made_again():
    text = sql(replace(OF_OWNERS, roles=frozenset({"cdcd_reads_ann"})))
    assert "-- Role cdcd_reads_ann exists." in text
    assert 'CREATE ROLE "cdcd_reads_ann"' not in text


def test_the_owner_that_cdcd_connects_as_needs_no_reader():
    found = replace(FOUND, owned=(owned("public", "orders", "cdcd"),))
    assert "cdcd_reads" not in sql(found) + configuration(ANSWERS, found)


@pytest.mark.parametrize("owner", ["o'b\"rien", "a: b, [c]", "ü" * 31, "x\n- y"])
def test_an_owner_of_any_name_gives_a_configuration_that_cdcd_takes(owner: str):
    found = replace(OF_OWNERS, owned=(owned('odd "s', "t.x*", owner),))
    (reader,) = parse_config(configuration(ANSWERS, found), {READER_PASSWORD: "x"}).postgres.readers
    assert reader.tables == ('"odd ""s"."t.x*"',)
    assert len((reader.user or "").encode()) <= 63


def test_the_terminal_names_tables_without_a_key_and_the_restart():
    assert warnings(FOUND, "cdcd.sql") == []
    found = replace(FOUND, tables=(table("loose", key=False), table("orders")), wal_level="replica")
    keyless, restart = warnings(found, "a b.sql")
    assert keyless.startswith("public.loose has no primary key.")
    assert "see the end of a b.sql" in keyless
    assert restart.startswith("wal_level is replica. Run the SQL, then restart PostgreSQL.")
    (pending,) = warnings(replace(FOUND, wal_level="replica", restart_pending=True), "cdcd.sql")
    assert "a change waits for the restart" in pending
    assert warnings(replace(found, has_publication=True, wal_level="logical"), "cdcd.sql") == []


def test_the_next_steps_are_commands_of_one_shell():
    found = steps(ANSWERS, replace(FOUND, wal_level="replica"), file="cdcd.yaml", sql="cdcd.sql")
    assert [what for what, _ in found] == [
        "Read cdcd.sql.",
        "Make a password for role cdcd, and keep it.",
        "Run the SQL.",
        "Restart PostgreSQL.",
        "Check both sides.",
        "Start.",
    ]
    assert [line for _, commands in found for line in commands] == [
        'export CDCD_POSTGRES__PASSWORD="$(head -c 18 /dev/urandom | base64)"',
        "psql -d 'host=db user=ann dbname=shop' -v password=\"$CDCD_POSTGRES__PASSWORD\" -f cdcd.sql",
        "cdcd check --config cdcd.yaml",
        "cdcd run --config cdcd.yaml",
    ]


def test_roles_that_exist_keep_their_passwords():
    found = replace(OF_OWNERS, has_role=True, roles=frozenset({"cdcd_reads_ann"}))
    assert passwords(ANSWERS, found) == [
        "read -r CDCD_POSTGRES__PASSWORD && export CDCD_POSTGRES__PASSWORD",
        "read -r CDCD_READER_PASSWORD && export CDCD_READER_PASSWORD",
    ]
    assert " -v " not in psql(ANSWERS, found, "cdcd.sql")
