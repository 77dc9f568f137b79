"""Connectors' configurations as files: Java's properties, JSON, and what is neither."""

from pathlib import Path

import pytest

from cdcd.core.errors import ConfigError
from cdcd.tools.adopt.reading import from_json, from_properties, read_file


def test_properties_are_read_as_java_reads_them() -> None:
    text = (
        "# a comment\n! another\n\nname = inventory\ntopic.prefix:shop\ntasks.max 1\n"
        "table.include.list=public\\\\.a,\\\n    public\\\\.b\nempty=\nblank\\ name=x\nunicode=\\u0041\\tB\n"
        "last=end\\\\\n"
    )
    assert from_properties(text) == {
        "name": "inventory",
        "topic.prefix": "shop",
        "tasks.max": "1",
        "table.include.list": r"public\.a,public\.b",
        "empty": "",
        "blank name": "x",
        "unicode": "A\tB",
        "last": "end\\",
    }


@pytest.mark.parametrize(
    "text",
    ['{"name": "a", "config": {"tasks.max": 1, "x": true}}', '{"name": "a", "tasks.max": "1", "x": "true"}'],
)
def test_json_is_read_in_both_forms(text: str, tmp_path: Path) -> None:
    (tmp_path / "connector.json").write_text(text)
    assert read_file(tmp_path / "connector.json") == {"name": "a", "tasks.max": "1", "x": "true"}


@pytest.mark.parametrize("text", ['{"hunter2"', "[1]", '{"config": {"a": {"b": "hunter2"}}}', "null"])
def test_what_is_no_configuration_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_json(text, "connector.json")
    assert "hunter2" not in str(caught.value)
    assert "connector.json" in str(caught.value)


def test_a_file_that_is_not_there_is_an_error_of_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read"):
        read_file(tmp_path / "none.json")
