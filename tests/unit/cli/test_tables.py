import json
from dataclasses import replace

import pytest

from cdcd.core.engine.checkpoint import AsideTable
from cdcd.tools.operations import pipeline_status as operation
from tests.unit.cli.test_status import exit_of, file
from tests.unit.tools.operations.test_pipeline_status import CHECKPOINT, WELL

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
