"""Connectors of Confluent Cloud, whose own options stand for converters and a transform of Kafka Connect, and which do
not name their schema registry.

No such connector was run, so the verdict asks a person to check the records. PostgresCdcSource and
PostgresCdcSourceV2 are Debezium's connector for PostgreSQL, run by Confluent. `output.data.format` and
`output.key.format` choose converters, and `after.state.only` is the transform ExtractNewRecordState.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdcd.tools.adopt.judging import OptionFinding
from cdcd.tools.adopt.references import References
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind

CLASSES: Final = frozenset({"postgrescdcsource", "postgrescdcsourcev2"})

_CONVERTERS: Final = {
    "avro": ("io.confluent.connect.avro.AvroConverter", ""),
    "json": ("org.apache.kafka.connect.json.JsonConverter", "false"),
    "json_sr": ("io.confluent.connect.json.JsonSchemaConverter", ""),
    "protobuf": ("io.confluent.connect.protobuf.ProtobufConverter", ""),
    "string": ("org.apache.kafka.connect.storage.StringConverter", ""),
}
"""For each format: the converter, and its option schemas.enable."""


def is_of_cloud(options: Mapping[str, str]) -> bool:
    """Return whether the options are those of a connector of Confluent Cloud."""
    return options.get("connector.class", "").strip().lower() in CLASSES


def of_cloud(options: Mapping[str, str]) -> dict[str, str]:
    """The options, with those of Kafka Connect that a connector of Confluent Cloud does not name."""
    made = dict(options)
    if not is_of_cloud(options):
        return made
    for part, option in (("key", "output.key.format"), ("value", "output.data.format")):
        converter, has_schemas = _CONVERTERS.get(options.get(option, "JSON").strip().lower(), ("", ""))
        if converter:
            made[f"{part}.converter"] = converter
        if has_schemas:
            made[f"{part}.converter.schemas.enable"] = has_schemas
    if (
        options.get("after.state.only", "").strip().lower() == "true"
        and not options.get("transforms", "").strip()
    ):
        made["transforms"] = "after_state_only"
        made["transforms.after_state_only.type"] = "io.debezium.transforms.ExtractNewRecordState"
    return made


_REGISTERED: Final = ("avro", "protobuf", "json_registry")


def with_registry(findings: Sequence[OptionFinding], references: References) -> list[OptionFinding]:
    """The findings, with a variable for the address of the registry if a format needs one that no option names."""
    if any("registry.url" in finding.verdict.keys for finding in findings):
        return list(findings)
    needs = [each.name for each in findings if each.verdict.keys.get("format.value") in _REGISTERED]
    if not needs:
        return list(findings)
    url = references.variable("registry_url", "the URL of the schema registry")
    return [
        replace(
            finding,
            verdict=Verdict(
                VerdictKind.DIFFERENT,
                f"{finding.verdict.why} No option names the registry: set the variable {url[2:-1]} to its URL.",
                {**finding.verdict.keys, "registry.url": url},
            ),
        )
        if finding.name == needs[-1]
        else finding
        for finding in findings
    ]
