import json
from dataclasses import replace

import pytest

from cdcd.cli.__main__ import main
from cdcd.tools.operations import pipeline_status as operation
from cdcd.tools.operations.pipeline_status import PipelineStatus
from tests.unit.tools.operations.test_pipeline_status import DOWN, WELL

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
