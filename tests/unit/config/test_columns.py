"""The sections `columns` and `fields`: patterns, keys, and keys that are never shown."""

from base64 import b64encode

import pytest

from cdcd.config.reference import effective_yaml
from cdcd.core.catalog.field_names import FieldRule
from cdcd.core.catalog.table_rules import KeyFormRule
from cdcd.core.records.shaping.expressions import CelCall, CelColumn
from cdcd.core.records.shaping.settings import TableComputed
from tests.unit.config.test_loading import MINIMAL, parse, problem

KEY = b64encode(bytes(32)).decode()
HASH_KEY = "correct horse battery staple"


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("exclude: [email]", "must be <schema>.<table>.<column>"),
        ("mask: {users.email: x}", "must be <schema>.<table>.<column>"),
        ("truncate: {a.b.c: -1}", "must be at least 0"),
        ("hash: [a.b.c]", "hash_key or hash_key_file is missing"),
        ("encrypt: [a.b.c]", "encryption_key or encryption_key_file is missing"),
        ("hash_key: short", "at least 16 characters"),
        ("encryption_key: c2hvcnQ=", "base64 of 32 bytes"),
        ("encryption_key: '***'", "base64 of 32 bytes"),
    ],
)
def test_what_is_wrong_is_named_without_the_key(section: str, says: str):
    found = problem(f"{MINIMAL}columns: {{{section}}}\n")
    assert says in found
    assert "c2hvcnQ=" not in found


def test_a_recording_beside_protected_columns_is_refused():
    # It would hold their values in clear.
    assert "record.directory" in problem(
        f"{MINIMAL}columns: {{exclude: [a.b.c]}}\nrecord: {{directory: /tmp/r}}\n"
    )


def test_keys_come_from_files_and_are_never_shown(tmp_path):
    (tmp_path / "hash").write_text(HASH_KEY + "\n")
    (tmp_path / "encryption").write_text(KEY)
    config = parse(
        f"columns: {{hash: ['*.*.a'], hash_key_file: {tmp_path}/hash, encrypt: ['*.*.b'], "
        f"encryption_key_file: {tmp_path}/encryption}}\n"
    )
    assert config.columns.hash_key is not None
    assert config.columns.hash_key.get_secret_value() == HASH_KEY
    shown = effective_yaml(config)
    assert HASH_KEY not in shown
    assert KEY not in shown
    assert "correct horse" not in repr(config)


BY_RECORD = "registry: {url: 'http://r', subjects: topic_record}"


def test_a_key_may_come_from_the_environment():
    config = parse("columns: {hash: ['*.*.a']}\n", CDCD_COLUMNS__HASH_KEY=HASH_KEY)
    assert config.columns.hash_key is not None


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ("orders: {rename: {a: b}}", "must be <schema>.<table>"),
        ("public.orders: {}", "has neither rename nor constants nor computed"),
        ("public.orders: {computed: {c: 'row.a +'}}", "fields.tables.public.orders.computed.c"),
        ("public.orders: {computed: {c: '1 + 1'}}", "uses no column of the row"),
        ("public.orders: {computed: {c: row.a}, constants: {c: x}}", "two fields would have the name c"),
        ("public.orders: {rename: {a: c, b: c}}", "two fields would have the name c"),
        ("public.orders: {rename: {a: c}, constants: {c: x}}", "two fields would have the name c"),
        ("public.orders: {constants: {c: 7}}", "fields.tables.public.orders.constants.c"),
        ("public.orders: {rename: {a: ''}}", "must not be empty"),
    ],
)
def test_what_is_wrong_is_named(tables: str, says: str):
    assert says in problem(f"{MINIMAL}fields: {{tables: {{{tables}}}}}\n")


def test_rows_of_an_outbox_table_have_no_fields():
    outbox = "outbox: {topics: [outbox.event.a], tables: {public.outbox: {}}}\n"
    given = f"{MINIMAL}{outbox}fields: {{tables: {{public.*: {{constants: {{a: b}}}}}}}}\n"
    assert "fields.tables: public.* matches public.outbox, whose rows are events" in problem(given)


def test_the_rules_are_those_that_are_given():
    assert parse().fields.rules == ()
    fields = parse("fields: {tables: {a.b: {rename: {x: y}, constants: {region: eu}}}}\n").fields
    assert fields.rules == (FieldRule("a.b", (("x", "y"),), (("region", "eu"),)),)
    assert fields.renames
    assert fields.computed == ()
    computed = parse("fields: {tables: {a.b: {computed: {up: string(row.x)}}}}\n").fields.computed
    assert computed == (TableComputed("a.b", (("up", CelCall("string", (CelColumn("x"),))),)),)
    assert not parse("fields: {tables: {a.b: {constants: {region: eu}}}}\n").fields.renames


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("key: {forms: {a.b: {}}}", "must have either bare: true or constants"),
        ("key: {forms: {a.b: {bare: true, constants: {c: x}}}}", "must have either bare: true or constants"),
        ("format: {key: text}", "format.key: text needs key.forms with bare: true"),
        (
            f"key: {{forms: {{a.b: {{bare: true}}}}}}\nformat: {{key: avro, value: avro}}\n{BY_RECORD}",
            "key.forms: a.b: bare needs registry.subjects: topic",
        ),
        (
            "key: {forms: {a.b: {constants: {c: x}}}}\nformat: {key: protobuf, value: protobuf}\nregistry: {url: 'http://r'}",
            "key.forms needs another format.key than protobuf",
        ),
    ],
)
def test_forms_of_keys_that_no_record_can_have_are_refused(given: str, says: str):
    assert says in problem(f"{MINIMAL}{given}\n")


def test_the_forms_of_keys_are_those_that_are_given():
    forms = parse("key: {forms: {a.b: {bare: true}, c.d: {constants: {shard: '1'}}}}\n").key.form_rules
    assert forms == (KeyFormRule("a.b", bare=True), KeyFormRule("c.d", constants=(("shard", "1"),)))
