import json
from dataclasses import replace

import pytest

from cdcd.cli.__main__ import main
from cdcd.core.engine.checkpoint import AsideTable
from cdcd.tools.operations import pipeline_status as operation
from cdcd.tools.operations.pipeline_status import PipelineStatus
from tests.unit.tools.operations.test_pipeline_status import CHECKPOINT, DOWN, WELL

MINIMAL = "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'broker:9092'}\n"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "shop.yaml").write_text(MINIMAL)
    return str(tmp_path / "shop.yaml")


def exit_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_the_exit_code_and_the_object_say_the_same(file, monkeypatch, capsys):
    asked: list[object] = []

    def look(_config: object, *arguments: object) -> PipelineStatus:
        asked.extend(arguments)
        return replace(WELL, server=DOWN)

    monkeypatch.setattr(operation, "look", look)
    assert exit_of("status", "--config", file, "--format", "json", "--url", "http://host:1/") == 10
    shown = json.loads(capsys.readouterr().out)
    assert (shown["exit_code"], shown["problems"][0]["code"]) == (10, "instance.none")
    assert asked == [file, "http://host:1"]


def test_for_people_the_summary_comes_first(file, monkeypatch, capsys):
    monkeypatch.setattr(operation, "look", lambda *_: WELL)
    assert exit_of("status", "--config", file) == 0
    assert capsys.readouterr().out.startswith("shop: streaming, no lag\n")


def test_an_address_that_is_no_url_is_refused(file, capsys):
    assert exit_of("status", "--config", file, "--url", "file:///etc/passwd") == 2
    assert "does not begin with http" in capsys.readouterr().err


__all__ = ["file"]


def test_the_list_has_an_exit_code_for_tables_that_are_set_aside(file, monkeypatch, capsys):
    aside = replace(WELL, checkpoint=replace(CHECKPOINT, tables=(AsideTable(1, 0x400, "topic"),)))
    monkeypatch.setattr(operation, "look", lambda *_: aside)
    assert exit_of("tables", "--config", file, "--format", "json") == 13
    shown = json.loads(capsys.readouterr().out)
    assert (shown["exit_code"], shown["tables_set_aside"]) == (13, 1)
    assert exit_of("tables", "--config", file) == 13
    assert "cdcd tables resume public.orders" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tables"], "Missing option '--config'"),
        (["tables", "stop"], "Missing argument"),
        (["tables", "resume"], "Missing argument"),
        (["tables", "begin"], "No such command"),
    ],
)
def test_what_is_missing_is_named(arguments, said, capsys, monkeypatch):
    monkeypatch.delenv("CDCD_CONFIG", raising=False)
    assert exit_of(*arguments) == 2
    assert said in capsys.readouterr().err
