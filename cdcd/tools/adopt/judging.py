"""Goes through the configuration of a connector: a finding for each option, also for those that nobody set.

Two kinds of options need more than their row of the table. Some depend on other options: those of a converter, of a
heartbeat, and of keys beside values. Others hold secrets (`logins.py`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from cdcd.config.java_client import JAAS
from cdcd.config.masking import is_secret_name, mask_text
from cdcd.tools.adopt.column_options import of_columns
from cdcd.tools.adopt.logins import USER_INFO, judge_login, judge_secret, judge_user_info
from cdcd.tools.adopt.options import OPTIONS, PRODUCER, Option
from cdcd.tools.adopt.reach import Known
from cdcd.tools.adopt.references import References, has_placeholder
from cdcd.tools.adopt.transforms import Judged, judge_transforms, of_option
from cdcd.tools.adopt.transforms_topics import AVRO_CONVERTER
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind, differs, lacks, same

_CLOUDEVENTS: Final = "io.debezium.converters.cloudeventsconverter"
_CONVERTERS: Final = {
    "io.confluent.connect.avro.avroconverter": ("registry", "avro"),
    "io.confluent.connect.protobuf.protobufconverter": ("registry", "protobuf"),
    "io.confluent.connect.json.jsonschemaconverter": ("registry", "json_registry"),
}
"""Converters that have their schemas in a registry, in lower case, with the kinds of options that they have."""

_OF: Final = {option.name: option.converter for option in OPTIONS if option.converter}
"""The kind of converter for each option of one."""

_OF_KEYS: Final = (("avro", "Avro"), ("protobuf", "Protobuf"), ("json_registry", "JSON with a registry"))
"""Formats of keys that need the same format of values, with their names."""

_OF_JSON: Final = ("schemas.enable", "replace.null.with.default")
"""Options of JsonConverter that the other converters do not have."""

_DECIMALS: Final = "decimal.format"
"""Option of the converters that write JSON."""

_AT: Final = "value.converter."
_DATA: Final = f"{_AT}data.serializer.type"
_SCHEMAS: Final = f"{_AT}json.schemas.enable"


def of_converter(name: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on an option, unless the connector's converter does not have the option."""
    part, _, rest = name.partition(".converter.")
    converter = options.get(f"{part}.converter", "").lower()
    kind = _OF.get(name, "events")
    is_foreign = kind != "events" and kind not in _CONVERTERS.get(converter, ())
    if converter and (is_foreign or (rest in _OF_JSON and converter in _CONVERTERS)):
        found = Verdict(VerdictKind.IRRELEVANT, f"{part}.converter does not have this option.")
    if rest == _DECIMALS:
        if converter and ".json." not in converter:
            found = Verdict(VerdictKind.IRRELEVANT, f"{part}.converter does not have this option.")
        elif options.get("decimal.handling.mode", "precise").strip().lower() != "precise":
            found = Verdict(
                VerdictKind.IRRELEVANT, "decimal.handling.mode leaves no decimals to this option."
            )
    return _of_events(name, options, found)


def _has_events(options: Mapping[str, str]) -> bool:
    """Whether the connector has the converter for values."""
    return options.get("value.converter", "").strip().lower() == _CLOUDEVENTS


def has_effect(name: str, options: Mapping[str, str]) -> bool:
    """Whether the default of an option has an effect, beside the others that are given."""
    part, _, rest = name.partition(".converter.")
    if rest in _OF_JSON:
        return "JsonConverter" in options.get(f"{part}.converter", "")
    if _OF.get(name) == "events" and (not _has_events(options) or _is_of_other_data(name, options)):
        return False
    return name != "flush.lsn.source" or not options.get("lsn.flush.mode")


def _of_events(name: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on an option of CloudEventsConverter, if the connector has the converter."""
    if name == f"{_AT}schemas.enable" and _has_events(options):
        return Verdict(VerdictKind.IRRELEVANT, "value.converter does not have this option.")
    if _OF.get(name) != "events":
        return found
    if options.get("value.converter") and not _has_events(options):
        return Verdict(VerdictKind.IRRELEVANT, "value.converter does not have this option.")
    if _is_of_other_data(name, options):
        return Verdict(VerdictKind.IRRELEVANT, f"This option does not apply to the data format in {_DATA}.")
    return found


def not_flattened(options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on an option of a transform. An event has an envelope's rows, and a flattened record has none."""
    if not _has_events(options) or not any(key.startswith("event_flattening.") for key in found.keys):
        return found
    return lacks(
        "Flattened records are no CloudEvents: Debezium's converter writes null for them. Choose one of the two: take "
        "the transform out of the connector, or accept this option, and cdcd writes CloudEvents with before and after."
    )


def _is_of_other_data(name: str, options: Mapping[str, str]) -> bool:
    is_avro = options.get(_DATA, "").strip().lower() == "avro"
    return is_avro if name == _SCHEMAS else not is_avro and name.startswith(f"{_AT}avro.")


_INTERVAL: Final = "heartbeat.interval.ms"
_PREFIX: Final = "topic.heartbeat.prefix"
_NAME: Final = "topic.heartbeat.name"
_QUERY: Final = "heartbeat.action.query"

_USUAL: Final = "__debezium-heartbeat"
_OFF: Final = ("", "0")


def of_heartbeat(name: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on an option of heartbeats beside the connector's other options."""
    if name not in {_QUERY, _PREFIX, _NAME} or not options.get(name, "").strip():
        return found
    if options.get(_INTERVAL, "0").strip() in _OFF:
        return Verdict(VerdictKind.IRRELEVANT, f"Without {_INTERVAL} there are no heartbeats.")
    if name != _PREFIX:
        return found
    if options.get(_NAME, "").strip():
        return Verdict(VerdictKind.IRRELEVANT, f"{_NAME} names the topic.")
    prefix, begins = options.get("topic.prefix", "").strip(), options.get(_PREFIX, _USUAL).strip()
    if begins == _USUAL or has_placeholder(prefix) or has_placeholder(begins):
        return found
    return same("topics.heartbeat is this, a point and the prefix.", topics__heartbeat=f"{begins}.{prefix}")


_OVERRIDES: Final = "snapshot.select.statement.overrides"
_WHOLE: Final = re.compile(
    r"\b(?:order\s+by|group\s+by|limit|offset|fetch|distinct|union|with|having)\b|;", re.IGNORECASE
)
"""SQL that an override cannot contain, because cdcd reads a table in chunks, each by a query of its own."""
_NO_ALIAS: Final = re.compile(
    r"\s*(?:where|join|inner|left|right|full|cross|natural|on|using|tablesample)\b|\s*[,)]|\s*$",
    re.IGNORECASE,
)


def of_overrides(name: str, options: Mapping[str, str], found: Verdict) -> Verdict:
    """The verdict on a query of a snapshot: `snapshot.queries`, or `found` if cdcd has no such query."""
    table = name.removeprefix(f"{_OVERRIDES}.")
    if table == name:
        return found
    if table not in map(str.strip, options.get(_OVERRIDES, "").split(",")):
        return Verdict(VerdictKind.IRRELEVANT, f"{_OVERRIDES} does not name the table.")
    query = _query_of_chunks(table, options[name].strip().rstrip(";"))
    if query is None:
        return found
    return differs(
        "snapshot.queries, in which {rows} stands for a chunk of the table. search_path is pg_catalog when the query "
        "runs, so write functions and other tables with their schema. `cdcd check` shows whether the query returns the "
        "columns of the table.",
        snapshot__queries={table: query},
    )


def _query_of_chunks(table: str, query: str) -> str | None:
    """The query with `{rows}` in place of the table; None: the query needs the whole table, or reads it twice."""
    parts = table.split(".")
    if len(parts) != 2 or _WHOLE.search(query) or "{" in query:
        return None
    schema, name = [rf'"?{re.escape(part)}"?' for part in parts]
    places = list(re.finditer(rf"\bfrom\s+(?:{schema}\s*\.\s*)?{name}(?![\w\".])", query, re.IGNORECASE))
    if len(places) != 1:
        return None
    behind = query[places[0].end() :]
    alias = f' AS "{parts[1]}"' if _NO_ALIAS.match(behind) else ""
    return f"{query[: places[0].start()]}FROM {{rows}}{alias}{behind}"


OVERRIDE: Final = "producer.override."
"""Prefix of the properties of the producer in a connector's configuration."""

WORKER_PRODUCER: Final = "producer."
"""Prefix of the properties of the producer in a worker's configuration."""

_FROM_WORKER: Final = ("key.converter", "value.converter", "header.converter", "topic.creation.enable")
"""A worker's properties that hold for connectors without their own."""

_SHOWN_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class OptionFinding:
    """What becomes of one option.

    Attributes:
        name: as the connector's configuration has it. Where the name itself holds a secret, the name of its kind.
        value: "" if it may be secret, or is too long to be shown.
        is_default: nobody set it; `value` is what Debezium takes.
    """

    name: str
    value: str
    is_default: bool
    verdict: Verdict


def with_worker(options: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """The connector's options, and those of the worker's properties that hold where the connector has none."""
    inherited: dict[str, str] = {}
    for name, value in worker.items():
        if name.startswith(WORKER_PRODUCER):
            inherited[f"{OVERRIDE}{name.removeprefix(WORKER_PRODUCER)}"] = value
        elif name in _FROM_WORKER or (
            # Connect takes a converter's options from where it takes the converter.
            name.startswith(("key.converter.", "value.converter."))
            and f"{name.partition('.')[0]}.converter" not in options
        ):
            inherited[name] = value
    return {**inherited, **options}


_FORMER_NAMES: Final = {
    "database.server.name": "topic.prefix",
    "table.whitelist": "table.include.list",
    "table.blacklist": "table.exclude.list",
    "schema.whitelist": "schema.include.list",
    "schema.blacklist": "schema.exclude.list",
    "column.whitelist": "column.include.list",
    "column.blacklist": "column.exclude.list",
    "toasted.value.placeholder": "unavailable.value.placeholder",
}
"""Names that only Debezium before 2.0 reads, with the present ones."""


def with_present_names(options: Mapping[str, str]) -> dict[str, str]:
    """The options, and those with a former name under their present names, as Debezium before 2.0 reads them.

    Debezium 2.0 replaced database.server.name by topic.prefix, which it requires: a connector with topic.prefix does
    not read former names.
    """
    if options.get("topic.prefix", "").strip():
        return dict(options)
    present = {new: options[old] for old, new in _FORMER_NAMES.items() if options.get(old, "").strip()}
    return {**present, **options}


def judge(
    options: Mapping[str, str],
    references: References,
    known: Known = None,
    existing: frozenset[str] = frozenset(),
) -> list[OptionFinding]:
    """The findings, in the order of the tables; what no table has comes last.

    Args:
        references: gets the variables that the findings' keys refer to.
        known: the captured tables, by which transforms are judged; None: the database was not asked.
        existing: the topics that are there, among which event routers choose; empty if Kafka was not asked.
    """
    transforms = judge_transforms(options, references, known, existing)
    found = [
        (option, _with_others(finding, options, transforms, known))
        for option, finding in (_judged(name, value, references) for name, value in options.items())
    ]
    found += _defaults(options)
    places = {name: place for place, name in enumerate([option.name for option in (*OPTIONS, *PRODUCER)])}
    ordered = sorted(found, key=lambda pair: places.get(pair[0].name, -1) if pair[0] else len(places))
    return _agreed([finding for _, finding in ordered])


def is_of_transforms(finding: OptionFinding) -> bool:
    """Whether the option is one of the connector's transforms."""
    return finding.name.partition(".")[0] == "transforms"


def _with_others(
    finding: OptionFinding, options: Mapping[str, str], transforms: Judged, known: Known
) -> OptionFinding:
    """The finding, as other options of the connector change it."""
    if is_of_transforms(finding):
        verdict = of_option(finding.name, transforms, finding.verdict)
        return replace(finding, verdict=not_flattened(options, verdict))
    if transforms.has_events_only and finding.name in _OF_EVENTS:
        return replace(finding, verdict=_of_event_converter(finding, options))
    columns = of_columns(finding.name, options.get(finding.name, ""), known, finding.verdict)
    beside = of_overrides(finding.name, options, of_heartbeat(finding.name, options, columns))
    return replace(finding, verdict=of_converter(finding.name, options, beside))


_OF_EVENTS: Final = ("key.converter", "value.converter")
_AS_THEY_ARE: Final = (
    "org.apache.kafka.connect.storage.stringconverter",
    "org.apache.kafka.connect.converters.bytearrayconverter",
    "io.debezium.converters.bytebufferconverter",
    "io.debezium.converters.binarydataconverter",
)
"""Converters that write a text or bytes without anything around them, in lower case."""


def _of_event_converter(finding: OptionFinding, options: Mapping[str, str]) -> Verdict:
    """The verdict on a converter of a connector whose records are all events of an outbox.

    cdcd writes PostgreSQL's text of key and payload, or the bytes of a bytea.
    """
    part, converter = finding.name.partition(".")[0], options.get(finding.name, "").strip().lower()
    if converter in _AS_THEY_ARE:
        return same(f"The {part} of an event is the text of its column, or the bytes of a bytea.")
    if converter == AVRO_CONVERTER:
        also = (
            "The key of an event is in Avro, and is not optional (outbox.tables: key_form)."
            if part == "key"
            else "The value of an event is in Avro (outbox.tables: payload_form). cdcd does not publish a payload that "
            "has no schema, where Debezium writes its text or fails (docs/outbox.md)."
        )
        return replace(finding.verdict, kind=VerdictKind.DIFFERENT, why=also)
    is_json = converter == "org.apache.kafka.connect.json.jsonconverter"
    if is_json and part == "key":
        return differs(
            "The key of an event is the text of its column, without JSON's quotes and without a schema. So keys have "
            "other bytes and go to other partitions: let consumers read everything before the takeover, if the order "
            "of events of one key matters to them."
        )
    if is_json:
        return differs(
            "The value of an event is the payload as it is: JSON stays JSON, as with table.expand.json.payload, and a "
            "text has no quotes around it. There is no schema around it."
        )
    return finding.verdict


def _agreed(findings: list[OptionFinding]) -> list[OptionFinding]:
    """The findings, where cdcd has one registry for keys and values: two different ones are refused."""
    values = {
        key: value
        for finding in findings
        if not finding.name.startswith("key.")
        for key, value in finding.verdict.keys.items()
    }
    agreed: list[OptionFinding] = []
    for finding in findings:
        keys = finding.verdict.keys
        if finding.name.startswith("key.") and any(
            values.get(key, value) != value for key, value in keys.items() if key.startswith("registry.")
        ):
            why = "cdcd has one setting for keys and values, and uses the setting of the values."
            finding = replace(finding, verdict=lacks(why))  # noqa: PLW2901
        beside = (values.get("format.value"), values.get("cloudevents.data"))
        for form, name in _OF_KEYS:
            if keys.get("format.key") == form and form not in beside:
                why = f"cdcd writes keys in {name} only if the values or data are in {name} too. The key is JSON."
                finding = replace(finding, verdict=lacks(why))  # noqa: PLW2901
        agreed.append(finding)
    return agreed


def _judged(name: str, value: str, references: References) -> tuple[Option | None, OptionFinding]:
    option = find(name)
    if option is None:
        return None, OptionFinding(name, "", is_default=False, verdict=_unknown(name))
    shown_name = option.name if option.is_secret and option.is_family else name
    hidden = option.is_secret or option.name.endswith("*") or is_secret_name(name)
    shown = "" if hidden else mask_text(value)
    return option, OptionFinding(
        shown_name,
        shown if len(shown) <= _SHOWN_MAX else "",
        is_default=False,
        verdict=_verdict(option, name, value.strip(), references),
    )


def find(name: str) -> Option | None:
    """The row of the tables for an option: the one of its own name, else the first of a family."""
    table, inner = (PRODUCER, name.removeprefix(OVERRIDE)) if name.startswith(OVERRIDE) else (OPTIONS, name)
    exact = next((option for option in table if option.name == inner), None)
    return exact or next((option for option in table if option.is_family and option.matches(inner)), None)


def _verdict(option: Option, name: str, value: str, references: References) -> Verdict:
    if not value and option.default is None and not option.takes_empty:
        return Verdict(VerdictKind.IRRELEVANT, "It is empty.")
    if name.endswith(JAAS):
        return judge_login(name, value, references)
    if name.endswith(USER_INFO):
        return judge_user_info(value, references)
    if option.is_secret:
        return judge_secret(option, name, value, references)
    replaced = references.replace(value, name)
    try:
        return option.judge(name, replaced)
    except ValueError as error:
        if has_placeholder(value):
            return Verdict(
                VerdictKind.UNKNOWN,
                "A config provider of the worker has its value. Write the value, and run this again.",
            )
        return Verdict(VerdictKind.UNKNOWN, f"Debezium's manual does not have this value: it {error}.")


def _defaults(options: Mapping[str, str]) -> Iterator[tuple[Option, OptionFinding]]:
    """What Debezium and Connect take for options that are not given."""
    for option in OPTIONS:
        if option.name in options or option.default is None or not has_effect(option.name, options):
            continue
        yield (
            option,
            OptionFinding(option.name, option.default, is_default=True, verdict=option.rule(option.default)),
        )


_CHOOSES: Final = ("column.", "schema.", "table.", "message.", "snapshot.", "skipped.", "field.", OVERRIDE)
"""What the names of options begin with that choose, protect or place records, or that the Java producer reads. An
unknown one may be misspelt, or of a later version, and a takeover without it could deliver what nobody may see."""


def _unknown(name: str) -> Verdict:
    meant = get_close_matches(name, [option.name for option in OPTIONS], 1, _CLOSE)
    guess = f" Perhaps {meant[0]} is meant." if meant else ""
    if name.startswith(_CHOOSES):
        whose = (
            "the Java producer"
            if name.startswith(OVERRIDE)
            else "Debezium's PostgreSQL connector and Kafka Connect"
        )
        return Verdict(
            VerdictKind.UNKNOWN,
            f"cdcd does not know this option of {whose}.{guess} Check what it does, then accept it by --accept.",
        )
    return Verdict(
        VerdictKind.DIFFERENT,
        "Debezium 3.7 and Kafka Connect 4.3 have no such option, so it has no effect. If the connector's version has "
        f"it, its effect ends with the takeover.{guess}",
    )


_CLOSE: Final = 0.8
"""Similarity from which on a known name is suggested."""
