"""Connectors of Confluent Cloud, and formats whose registry no option names."""

import pytest

from cdcd.tools.adopt.adoption import Adoption, adopt
from cdcd.tools.adopt.verdicts import VerdictKind
from tests.unit.tools.adopt.transforms_examples import CONNECTOR

CLOUD = {
    **{name: value for name, value in CONNECTOR.items() if "converter" not in name},
    "connector.class": "PostgresCdcSourceV2",
    "kafka.api.key": "secret-key",
    "kafka.api.secret": "secret-text",
}


def adopted(**options: str) -> Adoption:
    given = {**CLOUD, **{name.replace("__", "."): value for name, value in options.items()}}
    return adopt(given, {"kafka.bootstrap_servers": "kafka:9092"}, "f", look=None)


@pytest.mark.parametrize(
    ("form", "key", "value"),
    [
        ("JSON", "json", "json"),
        ("JSON_SR", "json_registry", "json_registry"),
        ("PROTOBUF", "protobuf", "protobuf"),
    ],
)
def test_its_formats_are_converters(form: str, key: str, value: str) -> None:
    found = adopted(output__data__format=form, output__key__format=form).config.format
    assert (found.key, found.value) == (key, value)


def test_the_registry_that_no_option_names_is_a_variable_that_the_operator_sets() -> None:
    found = adopted(output__data__format="AVRO", output__key__format="AVRO", after__state__only="true")
    assert found.settings["registry"] == {"url": "${REGISTRY_URL}"}
    assert "REGISTRY_URL" in found.missing[0]
    assert found.config.event_flattening.enabled
    (said,) = [each.verdict for each in found.findings if "registry.url" in each.verdict.keys]
    assert said.kind is VerdictKind.DIFFERENT
    assert "set the variable REGISTRY_URL" in said.why


def test_its_login_is_in_no_sentence_and_nothing_of_it_stands_in_the_way() -> None:
    found = adopted(output__data__format="JSON")
    said = " ".join([f"{each.value} {each.verdict.why}" for each in found.findings])
    assert "secret-key" not in said
    assert "secret-text" not in said
    assert not {"connector.class", "kafka.api.key", "output.data.format"} & set(found.blocking)
