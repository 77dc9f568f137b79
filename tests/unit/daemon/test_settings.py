"""How the configuration becomes what the decisions and the clients are given."""

import json
import zlib
from base64 import b64encode
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from cdcd.config.models import Config
from cdcd.config.sections.format import FormatConfig
from cdcd.core.engine.record_settings import CHANGES
from cdcd.daemon.settings import engine_settings, record_settings, start_settings
from tests.unit.daemon.test_wiring import configured


def test_a_start_decides_by_what_is_configured():
    more = "snapshot: {mode: when_needed, method: incremental, exclude: [public.log]}"
    settings = start_settings(configured(more=more))
    assert (settings.stream.slot, settings.stream.publication) == ("cdcd_shop", "cdcd_shop")
    assert (settings.stream.two_phase, settings.stream.failover) == (True, True)
    assert (settings.snapshot.mode, settings.snapshot.method) == ("when_needed", "incremental")
    assert settings.snapshot.exclude == ("public.log",)
    assert settings.topics.table("public", "t") == "shop.public.t"


@pytest.mark.parametrize(("delivery", "counts"), [("at_least_once", True), ("exactly_once", False)])
def test_writers_are_counted_where_kafka_fences_none(delivery: str, counts: bool):
    assert start_settings(configured(f", delivery: {delivery}")).counts_epochs is counts


NOT_CONFIGURED = {"large_bytes", "quiet_s"}
CHOSEN = {"failover", "two_phase"}
"""Options that `configured` gives another value."""
OF_FORMER_RECORDINGS = {
    "heals",
    "request_tokens",
    "record_bytes_max",
    "rereads_per_hour_max",
    "tables_ahead",
    "sets_aside",
    "fails_over_bytes",
    "has_requests",
    "context",
}
"""Settings that former versions did not have: their defaults are what these versions did."""


def test_a_default_of_the_engine_is_that_of_the_configuration():
    # The configuration of the test is given nothing but names and addresses.
    settings = engine_settings(configured(), 60.0)
    seen = set()
    for found in (settings, settings.snapshot, settings.heartbeat, start_settings(configured()).stream):
        defaults = {each.name: each.default for each in fields(found) if each.default is not MISSING}
        compared = defaults.keys() - NOT_CONFIGURED - OF_FORMER_RECORDINGS - CHOSEN
        assert {name: getattr(found, name) for name in compared} == {
            name: defaults[name] for name in compared
        }
        seen |= compared
    assert {"prepared_warning_age_s", "parallelism", "interval_s", "protocol"} <= seen


@pytest.mark.parametrize(
    ("version", "more", "has"),
    [(180000, "", True), (130020, "", False), (180000, "snapshot: {signals: 'off'}", False)],
)
def test_requests_need_logical_messages_and_the_leave_of_the_configuration(
    version: int, more: str, has: bool
):
    assert engine_settings(configured(more=more), 60.0, server_version=version).has_requests is has


# What decides how rows become records.

FILTER = "filters: {tables: {public.t: {keep: row.id > 1}}}"


def test_settings_of_records_are_those_that_are_not_at_their_defaults():
    assert [name for name, _ in record_settings(configured())] == ["topics.prefix"]
    more = f"{FILTER}\nformat: {{decimal_handling_mode: double}}\nkey: {{columns: {{public.t: [id]}}}}"
    assert [name for name, _ in record_settings(configured(more=more))] == [
        "filters.tables",
        "format.decimal_handling_mode",
        "key.columns",
        "topics.prefix",
    ]


def test_another_value_has_another_checksum_and_the_order_of_tables_is_nothing():
    other = FILTER.replace("> 1", "> 2")
    assert record_settings(configured(more=FILTER)) != record_settings(configured(more=other))
    one = "filters: {tables: {public.t: {keep: row.id > 1}, public.u: {keep: row.id > 2}}}"
    two = "filters: {tables: {public.u: {keep: row.id > 2}, public.t: {keep: row.id > 1}}}"
    assert record_settings(configured(more=one)) == record_settings(configured(more=two))


@pytest.mark.parametrize(
    ("action", "name", "keys"),
    [
        ("hash", "hash_key", ("1" * 64, "2" * 64)),
        ("encrypt", "encryption_key", (b64encode(b"1" * 32).decode(), b64encode(b"2" * 32).decode())),
    ],
)
def test_another_key_is_told_and_another_file_with_the_same_key_is_not(
    action: str, name: str, keys: tuple[str, str], tmp_path: Path
):
    columns = f"columns: {{{{{action}: [public.t.a], {name}{{}}: '{{}}'}}}}"
    one, two = (configured(more=columns.format("", key)) for key in keys)
    changed = {setting for setting, _ in {*record_settings(one)} ^ {*record_settings(two)}}
    assert changed == {f"columns.{name}"}
    (tmp_path / "key").write_text(keys[0])
    assert record_settings(configured(more=columns.format("_file", tmp_path / "key"))) == record_settings(one)


def test_a_key_that_no_rule_needs_is_no_setting_of_records():
    more = f"columns: {{hash_key: '{'1' * 64}'}}"
    assert record_settings(configured(more=more)) == record_settings(configured())


def test_the_mark_of_a_key_does_not_show_it():
    key = "a secret that nobody may read"
    marks = record_settings(configured(more=f"columns: {{hash: [public.t.a], hash_key: '{key}'}}"))
    assert dict(marks)["columns.hash_key"] != zlib.crc32(json.dumps(key).encode())


def test_settings_that_change_no_record_are_left_out():
    more = "snapshot: {mode: never}\nheartbeat: {interval_s: 5}\nspool: {memory_bytes_max: 1000000}"
    assert record_settings(configured(more=more)) == record_settings(configured())


def test_every_setting_of_the_table_is_one_of_the_configuration():
    for name in CHANGES:
        section, _, key = name.partition(".")
        model = Config.model_fields[section].annotation
        assert model is not None
        assert not key or key in model.model_fields
    assert {f"format.{name}" for name in FormatConfig.model_fields} <= {*CHANGES}
