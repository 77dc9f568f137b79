"""Values, schemas and records under each mode beside those of a real Debezium (`tests/debezium/capture_modes.py`)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cdcd.core.catalog.modes import Modes, logical_type_under
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Delete, Insert, LogicalMessage, Relation, Truncate, Update
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.debezium_json.connect_schema import schema_of
from cdcd.core.records.debezium_json.converters import converter_of
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.schema_names import adjusted
from cdcd.core.records.unwritable import UnwritableError
from tests.debezium.capture import TYPES
from tests.debezium.capture_modes import GOLDEN, RARE, VARIANTS
from tests.unit.core.records.debezium_json.test_debezium_schemas import DIFFERENT, ORDERS, OWN, column, field

_GOLDEN: dict[str, Any] = json.loads(GOLDEN.read_text())
CAPTURED: dict[str, dict[str, Any]] = _GOLDEN["variants"]
SENT: dict[str, dict[str, str]] = _GOLDEN["sent"]
"""The texts that the server sends for the same values."""

TYPED = [prefix for prefix in VARIANTS if any(topic.endswith(".rare") for topic in CAPTURED[prefix])]

MODES = {
    prefix: Modes(
        decimal=VARIANTS[prefix].get("decimal.handling.mode", "string"),
        time_precision=VARIANTS[prefix].get("time.precision.mode", "adaptive"),
        interval=VARIANTS[prefix].get("interval.handling.mode", "string"),
        binary=VARIANTS[prefix].get("binary.handling.mode", "bytes"),
        hstore=VARIANTS[prefix].get("hstore.handling.mode", "json"),
        geometry="structured",
    )
    for prefix in TYPED
}

INFINITE = ("infinity", "-infinity")

DIFFERENCES: dict[str, tuple[str, Any]] = {
    "negative scales": (
        "Debezium takes the scale of numeric(4,-2) for 2046.",
        lambda kind, value, modes: kind == "numeric(4,-2)",
    ),
    "infinite dates under adaptive": (
        "Debezium 3.7 has other numbers for infinite dates and timestamps than 3.5, whose cdcd keeps by default.",
        lambda kind, value, modes: value in INFINITE
        and (
            (kind == "date" and modes.time_precision not in {"connect", "isostring", "structured"})
            or (kind.startswith("timestamp") and not kind.startswith("timestamptz")
                and modes.time_precision.startswith("adaptive"))
        ),
    ),
    "midnight as text or object": (
        "For 24:00:00, Debezium writes 00:00:00Z under `isostring`, the other end of the day, else null.",
        lambda kind, value, modes: kind.startswith("time") and value == "24:00:00"
        and modes.time_precision in {"isostring", "structured"},
    ),
    "the first day of nanoseconds": (
        "Debezium writes null for all of 1677-09-21, of which 64 bits hold what is after 00:12:43.",
        lambda kind, value, modes: value == "1677-09-21 12:00:00" and modes.time_precision == "nanoseconds",
    ),
    "intervals": (
        "Debezium calculates intervals with doubles: 1.999999 seconds lose a millionth. Infinite ones become 0.",
        lambda kind, value, modes: kind == "interval" and (value in INFINITE or value == "00:00:01.999999"),
    ),
    "arrays of dates and times": (
        "Debezium reads them by JDBC: a time loses its microseconds and 24:00, a date infinity and the era.",
        lambda kind, value, modes: kind in {"time[]", "date[]", "timestamp[]"} and value != "{2024-01-31,NULL}"
        and not value.startswith("{2024-01-31 12:34:56.789012"),
    ),
    "arrays of boxes": (
        "Debezium writes null for arrays of geometric types.",
        lambda kind, value, modes: kind == "box[]",
    ),
    "arrays of several dimensions": (
        "Debezium writes null for each inner array.",
        lambda kind, value, modes: value.startswith("{{"),
    ),
}  # fmt: skip
"""Of each difference: why, and for which type, value and modes it is one. With the types that Debezium leaves out, or
does not know (`test_debezium_schemas.py`), these are all."""


def test_the_list_of_differences_is_short():
    assert len(DIFFERENCES) <= 10


def made(prefix: str, kind: str, text: str) -> Any:
    """The value that a record has."""
    of = column("c", kind)
    converter = converter_of(logical_type_under(MODES[prefix], of.type_oid, of.type_modifier, OWN))
    try:
        return json.loads(to_bytes(converter.json(wire(text))))
    except UnwritableError:
        return None


def rare_cases() -> list[tuple[int, str, str, str]]:
    return [
        (100 * place + row, name, kind, value)
        for place, (name, (kind, values)) in enumerate(RARE.items())
        for row, value in enumerate(values)
    ]


def different(prefix: str) -> Iterator[tuple[str, str, Any, Any]]:
    """Type and value of those that are not Debezium's under these modes, and what is written here and there."""
    records = CAPTURED[prefix][f"{prefix}.public.rare"]["records"]
    theirs = {each["value"]["after"]["id"]: each["value"]["after"] for each in records}
    assert len(theirs) == len(rare_cases())
    for number, name, kind, value in rare_cases():
        if name not in theirs[number]:
            assert kind in DIFFERENT
            continue
        ours = made(prefix, kind, SENT["rare"][str(number)])
        if ours != theirs[number][name]:
            yield kind, value, ours, theirs[number][name]


@pytest.mark.parametrize("prefix", TYPED)
def test_a_rare_value_is_debeziums_unless_the_list_says_why_not(prefix):
    for kind, value, ours, theirs in different(prefix):
        assert any(applies(kind, value, MODES[prefix]) for _, applies in DIFFERENCES.values()), (
            kind,
            value,
            ours,
            theirs,
        )


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_difference_of_the_list_is_one(name):
    _, applies = DIFFERENCES[name]
    assert any(
        applies(kind, value, MODES[prefix]) for prefix in TYPED for kind, value, _, _ in different(prefix)
    )


@pytest.mark.parametrize("prefix", TYPED)
def test_every_type_has_debeziums_value_and_schema_unless_the_list_says_why_not(prefix):
    captured = CAPTURED[prefix][f"{prefix}.public.types"]
    (record,) = captured["records"]
    fields = {each["field"]: each for each in field(captured["value"], "after")["fields"]}
    for number, (kind, _) in enumerate(TYPES):
        name = f"c{number}"
        if kind in DIFFERENT and kind not in LATER:
            continue
        of = column(name, kind)
        logical = logical_type_under(MODES[prefix], of.type_oid, of.type_modifier, OWN)
        assert json.dumps({**schema_of(logical), "field": name}) == json.dumps(fields[name])
        assert made(prefix, kind, SENT["types"][name]) == record["value"]["after"][name], (kind, prefix)


@pytest.mark.parametrize("prefix", TYPED)
def test_a_logical_message_has_debeziums_content_and_schema(prefix):
    captured = CAPTURED[prefix][f"{prefix}.message"]
    settings = EncoderSettings("1", prefix, "d", value_format="json_schema", modes=MODES[prefix])
    encoder = record_stream(settings)
    encoder.begin(1, 2, 3, None)
    assert len(captured["records"]) == 2
    for record, content in zip(captured["records"], (b"content", b"side"), strict=True):
        theirs = record["value"]["message"]
        out: list[Record] = []
        message = LogicalMessage(None, True, 2, theirs["prefix"], content)
        encoder.encode(write_frame(XLogData(1, 1, 0, write_message(message))), False, 0, out)
        ((_, _, value, _),) = out
        made = json.loads(value or b"")
        assert made["payload"]["message"] == theirs
        assert json.dumps(field(made["schema"], "message")) == json.dumps(field(captured["value"], "message"))


LATER = {"box", "circle", "line", "lseg", "path", "polygon"}
"""Types that Debezium knows since 3.7, as cdcd does."""


@pytest.mark.parametrize("prefix", ["a-1_x", "2-b_c"])
def test_names_of_schemas_are_adjusted_as_debezium_does(prefix):
    mode = VARIANTS[prefix]["schema.name.adjustment.mode"]
    for topic, captured in CAPTURED[prefix].items():
        if ".public." in topic and captured["records"]:
            assert captured["value"]["name"] == adjusted(f"{topic}.Envelope", mode)
            assert captured["value"]["fields"][0]["name"] == adjusted(f"{topic}.Value", mode)
            assert captured.get("key", {}).get("name", adjusted(f"{topic}.Key", mode)) == adjusted(
                f"{topic}.Key", mode
            )


@pytest.mark.parametrize("prefix", ["nanoseconds", "a-1_x", "2-b_c", "skip-c"])
def test_skipped_operations_leave_out_the_records_that_debezium_leaves_out(prefix):
    skipped = VARIANTS[prefix].get("skipped.operations", "none").split(",")
    encoder = record_stream(
        EncoderSettings("1", prefix, "d", truncate="t" not in skipped, skipped=tuple(skipped))
    )
    encoder.define(ORDERS, TableDescription(("Order no", "line")), {})
    encoder.define(LOG, TableDescription(), {})
    made: dict[str, list[Any]] = {"orders": [], "log": []}
    numbers: list[int] = []
    for events in CHANGED:
        encoder.begin(1, 2, 3, None)
        for event in events:
            out: list[Record] = []
            encoder.encode(write_frame(XLogData(1, 1, 0, write_message(event))), False, 0, out)
            for topic, key, value, headers in out:
                row = None if value is None else json.loads(value)
                made[topic.rpartition(".")[2]].append(
                    (
                        None if key is None else json.loads(key),
                        None if row is None else (row["op"], row["before"], row["after"]),
                        sorted(name for name, _ in headers or ()),
                    )
                )
                if row is not None:
                    numbers.append(row["source"]["event_serial_no"])
    for table, ours in made.items():
        assert ours == [
            (
                each["key"],
                None
                if each["value"] is None
                else tuple(each["value"][part] for part in ("op", "before", "after")),
                sorted(each.get("headers", ())),
            )
            for each in CAPTURED[prefix][f"{prefix}.public.{table}"]["records"]
        ]
    # A skipped event has its number all the same: the last one of the last transaction is the third.
    assert numbers[-1] == (2 if "c" in skipped else 3)


def _row(*values: object) -> tuple[bytes | None, ...]:
    return tuple([None if value is None else str(value).encode() for value in values])


LOG = Relation(None, 2, "public", "log", "f", (Column(0, "entry", 25, -1),))
_ORDERS, _LOG = ORDERS.oid, LOG.oid
CHANGED: list[list[Any]] = [
    [Insert(None, _ORDERS, _row(1, 2, "a"))],
    [Update(None, _ORDERS, "", None, _row(1, 2, "b"))],
    [Update(None, _ORDERS, "K", _row(1, 2, None), _row(1, 3, "b"))],
    [Delete(None, _ORDERS, "K", _row(1, 3, None))],
    [Insert(None, _LOG, _row("x"))],
    [Update(None, _LOG, "O", _row("x"), _row("y"))],
    [Truncate(None, False, False, (_LOG,))],
    [
        Insert(None, _ORDERS, _row(5, 1, "x")),
        Update(None, _ORDERS, "", None, _row(5, 1, "y")),
        Insert(None, _LOG, _row("z")),
    ],
]
"""What `capture.CHANGES` and the last of `capture_modes.MODE_CHANGES` do with the tables `orders` and `log`."""
