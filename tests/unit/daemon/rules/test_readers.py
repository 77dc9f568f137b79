"""What is said of owners and readers, over facts made up for it."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from cdcd.adapters.postgres.connection import Dsn
from cdcd.adapters.postgres.readers import Access, Owned, ReaderFacts, ReadersFacts
from cdcd.config.loading import Config, parse_config
from cdcd.core.errors import SourceError
from cdcd.daemon.rules.readers import OwnedTables, check_readers, untrusted
from cdcd.telemetry.findings import Finding


def config(*, strict: bool = False, **postgres: Any) -> Config:
    given = {
        "name": "shop",
        "postgres": {"dsn": "postgresql://cdcd@127.0.0.1/shop", **postgres},
        "kafka": {"bootstrap_servers": "127.0.0.1:9092"},
        "security": {"strict": strict},
    }
    return parse_config(yaml.safe_dump(given), {})


def owned(name: str, owner: str, *, superuser: bool = False, part: str = "") -> Owned:
    schema, table = name.split(".")
    return Owned((schema, table), tuple((part or name).split(".")), owner, superuser)  # type: ignore[arg-type]


ACCESS = Access(0, "reads_crm", ("crm.*",), lambda: Dsn(()))
READER = ReaderFacts(ACCESS, ("crm.people",))
FACTS = ReadersFacts(
    "cdcd",
    (owned("public.orders", "postgres", superuser=True), owned("crm.people", "ann")),
    (READER,),
    {("public", "orders"): None, ("crm", "people"): 0},
)


def bad(facts: ReadersFacts, given: Config | None = None) -> list[Finding]:
    return [one for one in check_readers(facts, given or config()) if one.level != "ok"]


def with_reader(**fields: Any) -> ReadersFacts:
    return replace(FACTS, readers=(replace(READER, **fields),))


def test_tables_of_trusted_owners_and_of_readers_are_in_order():
    assert bad(FACTS) == []


@pytest.mark.parametrize(("owner", "is_said"), [("ann", True), ("cdcd", False), ("app", False)])
def test_an_owner_that_is_nobody_trusted_is_named_with_the_sql_and_the_yaml(owner: str, is_said: bool):
    facts = replace(FACTS, owned=(owned("crm.people", owner),), places={("crm", "people"): None}, readers=())
    findings = bad(facts, config(trusted_owners=["app"]))
    assert [one.code for one in findings] == ["reader.missing"] * is_said
    if is_said:
        (one,) = findings
        assert one.level == "warning"
        assert 'CREATE ROLE "cdcd_reads_ann" LOGIN;' in one.fix
        assert 'GRANT USAGE ON SCHEMA "crm" TO "cdcd_reads_ann";' in one.fix
        assert 'GRANT SELECT ON "crm"."people" TO "cdcd_reads_ann";' in one.fix
        assert 'readers: [{tables: ["crm.people"], user: "cdcd_reads_ann"}]' in one.fix
        assert bad(facts, config(strict=True))[0].level == "error"


def test_the_owner_of_a_partition_counts_too_and_its_reader_reads_the_whole_table():
    parts = [
        owned("crm.log", "postgres", superuser=True),
        owned("crm.log", "postgres", superuser=True, part="crm.log_1"),
        owned("crm.log", "eve", part="crm.log_2"),
    ]
    assert list(untrusted(parts, set())) == [
        OwnedTables("eve", (("crm", "log"),), (("crm", "log"), ("crm", "log_1"), ("crm", "log_2")))
    ]


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"attributes": ("REPLICATION",)}, "reader.rights", "NOREPLICATION"),
        ({"attributes": ("BYPASSRLS",)}, "reader.rights", "NOBYPASSRLS"),
        ({"offered": ("mallory",)}, "reader.tables", 'REVOKE "mallory" FROM "reads_crm"'),
        ({"memberships": ("pg_monitor",)}, "reader.rights", 'REVOKE "pg_monitor" FROM "reads_crm"'),
        (
            {"others": ("public.orders",)},
            "reader.tables",
            'REVOKE SELECT ON "public"."orders" FROM "reads_crm"',
        ),
    ],
)
def test_a_right_that_a_reader_does_not_need_is_a_warning_with_its_end(
    fields: dict[str, Any], code: str, said: str
):
    (one,) = bad(with_reader(**fields))
    assert (one.level, one.code) == ("warning", code)
    assert said in one.fix
    (one,) = bad(with_reader(**fields), config(strict=True))
    assert one.level == "error"


def test_bypassrls_is_needed_where_a_table_has_policies():
    assert bad(with_reader(attributes=("BYPASSRLS",), has_policies=True)) == []


def test_a_reader_of_two_owners_shows_each_the_rows_of_the_other():
    facts = replace(
        FACTS,
        owned=(owned("crm.people", "ann"), owned("crm.bills", "bob")),
        places={("crm", "people"): 0, ("crm", "bills"): 0},
    )
    (one,) = bad(facts)
    assert one.code == "reader.shared"
    assert "ann, bob" in one.found
    assert bad(facts, config(trusted_owners=["bob"])) == []


def test_a_reader_that_is_refused_is_an_error_in_the_servers_words():
    (one,) = bad(with_reader(refusal=SourceError("role does not exist", hint="CREATE ROLE …")))
    assert (one.level, one.code, one.found) == ("error", "reader.connect", "role does not exist")
    (one,) = bad(with_reader(elsewhere=True))
    assert (one.level, one.code) == ("error", "reader.connect")
