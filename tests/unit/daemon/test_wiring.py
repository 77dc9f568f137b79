"""How the configuration becomes the settings of the decisions, and what a look-up in the catalog answers."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from cdcd.adapters.kafka.descriptions import FormerDescriptions
from cdcd.adapters.postgres import catalog as catalog_module
from cdcd.config.loading import Config, parse_config
from cdcd.config.sections.format import FormatConfig
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.errors import ConfigError, SourceError
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.protocol.versions import Options, StreamingMode
from cdcd.core.records.available import FORMATS
from cdcd.core.snapshot.reading import Visibility
from cdcd.daemon import wiring
from cdcd.daemon.settings import encoder_settings, engine_settings

MINIMAL = """
name: shop
postgres: {dsn: "postgresql://127.0.0.1/shop", two_phase: true, failover: true}
"""
INT4 = 23


def configured(kafka: str = "", more: str = "") -> Config:
    return parse_config(f"{MINIMAL}kafka: {{bootstrap_servers: '127.0.0.1:9092'{kafka}}}\n{more}", {})


def test_a_transaction_is_whole_only_where_kafka_has_transactions():
    whole = ", transaction: {whole_bytes_max: 1000000000}"
    assert engine_settings(configured(whole), 60.0).batches.whole_bytes_max == 1_000_000_000
    assert (
        engine_settings(configured(f"{whole}, delivery: at_least_once"), 60.0).batches.whole_bytes_max is None
    )


def test_keys_and_values_have_the_formats_that_are_configured():
    default = encoder_settings(configured(), "shop")
    assert (default.key_format, default.value_format) == ("json", "json")
    chosen = encoder_settings(configured(more="format: {value: json_schema}"), "shop")
    assert (chosen.key_format, chosen.value_format) == ("json", "json_schema")


def test_modes_are_those_that_are_configured():
    default = encoder_settings(configured(), "shop")
    assert (default.modes, default.skipped, default.name_adjustment) == (Modes(), (), "none")
    assert default.unavailable == "__debezium_unavailable_value"
    chosen = encoder_settings(
        configured(
            more="topics: {skipped_operations: [d, t, c]}\n"
            "format: {decimal_handling_mode: precise, time_precision_mode: connect, interval_handling_mode: numeric,"
            " binary_handling_mode: hex, hstore_handling_mode: map, schema_name_adjustment_mode: avro,"
            " unavailable_value_placeholder: 'hex:c3a4'}"
        ),
        "shop",
    )
    assert chosen.modes == Modes("precise", "connect", "numeric", "hex", "map")
    assert (chosen.skipped, chosen.truncate, chosen.name_adjustment) == (("c", "d"), False, "avro")
    assert chosen.unavailable == "ä"


@pytest.mark.parametrize("text", ["hex:f", "hex:ff"])
def test_a_placeholder_of_bytes_is_a_text(text: str):
    with pytest.raises(ConfigError, match="hexadecimal digits of a text in UTF-8"):
        configured(more=f"format: {{unavailable_value_placeholder: '{text}'}}")


def test_updates_can_be_skipped_only_where_no_snapshot_needs_them():
    skipping = "topics: {skipped_operations: [u]}\n"
    for snapshot in (
        "{}",
        "{mode: never}",
        "{signals: 'off'}",
        "{mode: never, signals: 'off', added_tables: true}",
    ):
        with pytest.raises(ConfigError, match=r"topics\.skipped_operations: u needs snapshot\.mode: never"):
            configured(more=f"{skipping}snapshot: {snapshot}")
    chosen = configured(more=f"{skipping}snapshot: {{mode: never, signals: 'off'}}")
    assert encoder_settings(chosen, "shop").skipped == ("u",)


def test_every_format_that_can_be_configured_is_there():
    for part, others in (("key", {"cloudevents"}), ("value", set())):
        named = {*get_args(FormatConfig.model_fields[part].annotation)} - {"text"}  # JSON, but for bare keys
        assert named | others == FORMATS.keys()


@pytest.mark.parametrize(("mode", "only"), [("only", True), ("initial", False)])
def test_a_session_ends_after_its_snapshot_only_if_that_is_all_it_is_for(mode: str, only: bool):
    assert engine_settings(configured(more=f"snapshot: {{mode: {mode}}}"), 60.0).snapshot.ends is only


def test_postgresql_hears_from_us_before_it_ends_the_connection():
    assert engine_settings(configured(), 3.0).status_interval_s < 3.0


SEEN = Visibility.parse("10:20:")
RELATION = Relation(None, 7, "public", "t", "d", (Column(1, "id", INT4, -1),))
OLD = TableDescription()
NEW = TableDescription(("id",), (), (CatalogColumn("id", 1, "integer", INT4, 0, None),))


class Catalog:
    """A catalog that another transaction changes between two looks."""

    def __init__(self, *described: TableDescription) -> None:
        self.described = list(described)
        self.asked: list[str] = []

    async def describe(
        self, _sql: object, oids: Sequence[int], *, with_kin: bool = False
    ) -> dict[int, TableDescription]:
        self.asked.append("describe")
        return {oids[0]: self.described.pop(0)}

    async def visibility(self, _sql: object) -> Visibility:
        self.asked.append("visibility")
        return SEEN

    async def types(self, _sql: object, oids: Sequence[int]) -> dict[int, Any]:
        self.asked.append(f"types {list(oids)}")
        return {}


async def no_former_descriptions() -> FormerDescriptions:
    return FormerDescriptions()


def looked_up(monkeypatch: pytest.MonkeyPatch, catalog: Catalog, relation: Relation = RELATION) -> Any:
    for name in ("describe", "types", "visibility"):
        monkeypatch.setattr(catalog_module, name, getattr(catalog, name))
    sql: Any = None
    return asyncio.run(
        wiring._LookUp(sql, no_former_descriptions, lambda fact: None, protects=False)(relation)
    )


def test_a_table_that_the_catalog_shows_as_the_stream_does_is_looked_up_once(monkeypatch):
    catalog = Catalog(NEW)
    found, _, seen = looked_up(monkeypatch, catalog)
    assert (found, seen) == (NEW, None)
    assert catalog.asked == ["describe"]


def test_a_table_that_the_catalog_shows_otherwise_is_looked_up_again_behind_a_snapshot(monkeypatch):
    """Whoever judges the difference must know that the second look is no older than what the snapshot sees."""
    catalog = Catalog(OLD, OLD)
    found, _, seen = looked_up(monkeypatch, catalog)
    assert (found, seen) == (OLD, SEEN)
    assert catalog.asked == ["describe", "visibility", "describe"]


def test_a_type_that_is_not_built_in_is_looked_up(monkeypatch):
    relation = Relation(None, 7, "public", "t", "d", (Column(1, "id", 99_999, -1),))
    catalog = Catalog(NEW, NEW)
    looked_up(monkeypatch, catalog, relation)
    assert catalog.asked[0] == "types [99999]"


class _Stream:
    server_version = 180004

    def __init__(self, refusal: Exception | None, order: list[str]) -> None:
        self._refusal = refusal
        self._order = order

    async def start(self, *_: object, **__: object) -> None:
        await asyncio.sleep(0)
        self._order.append("accepted" if self._refusal is None else "refused")
        if self._refusal is not None:
            raise self._refusal


@pytest.mark.parametrize("refusal", [None, SourceError("the slot is gone")])
def test_the_stream_is_told_as_started_only_after_the_server_has_accepted_it(refusal: Exception | None):
    order: list[str] = []
    options = Options(4, StreamingMode.PARALLEL, True, (), True)
    made: Any = SimpleNamespace(
        config=configured(),
        stream=_Stream(refusal, order),
        ready=SimpleNamespace(options=options, checkpoint=SimpleNamespace(position="0/64")),
        wal_sender_timeout_s=60.0,
        observe=lambda fact: order.append(fact.event),
    )
    if refusal is None:
        asyncio.run(wiring.start_replication(made))
    else:
        with pytest.raises(SourceError):
            asyncio.run(wiring.start_replication(made))
    assert order == (["accepted", "stream.started"] if refusal is None else ["refused"])
