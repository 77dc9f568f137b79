import re
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import JavaClient
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from cdcd.mirror.platform.java import LIST, elements, identifier, java, mapped, texts

SEARCH = "r\nu\n"
"""How a command of Py4J begins that looks for a class by a part of its name (py4j.java_gateway.JavaPackage)."""


def test_classes_and_what_collections_have_come_without_a_search(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    commands: list[str] = []
    send = JavaClient.send_command

    def sent(self: JavaClient, command: str, *given: Any, **named: Any) -> Any:
        commands.append(command)
        return send(self, command, *given, **named)

    monkeypatch.setattr(JavaClient, "send_command", sent)
    made = java(spark, LIST)()
    for each in ("b", "a"):
        made.add(each)
    assert elements(made) == ["b", "a"]
    found = java(spark, "java.util.TreeMap")()
    found.put("a", 1)
    assert mapped(found) == {"a": 1}
    found.put("a", 'say "Grüße" 🐘\n')
    found.put("none", None)
    assert texts(spark, found) == {"a": 'say "Grüße" 🐘\n', "none": None}
    assert java(spark, "java.util.AbstractMap$SimpleEntry")("key", 2).getValue() == 2
    assert list(identifier(spark, ["x", "y"], "t").namespace()) == ["x", "y"]
    assert len(commands) > 10
    assert [command for command in commands if command.startswith(SEARCH)] == []
    # A loop that goes over the collection searches, so the commands would tell.
    assert list(made) == ["b", "a"]
    assert [command for command in commands if command.startswith(SEARCH)] != []


def test_a_class_that_is_not_there_is_an_error_of_py4j(spark: SparkSession):
    with pytest.raises(Py4JError):
        java(spark, "org.nobody.Nothing").of()


def test_no_module_names_a_class_of_java_part_by_part():
    folder = Path(__file__).parents[4] / "cdcd"
    named = [
        path.name
        for path in folder.rglob("*.py")
        if re.search(r"\b_?jvm\.(?!java\.util\.ArrayList)", path.read_text())
    ]
    assert named == []
