import json

import pytest

from cdcd.checks import run as preflight
from cdcd.checks.finding import Finding
from cdcd.checks.run import Report
from cdcd.cli.__main__ import main

MINIMAL = "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'broker:9092'}\n"
REPORT = Report(
    (
        Finding("ok", "wal_level", "logical"),
        Finding(
            "error", "public.[bold]a", "REPLICA IDENTITY NOTHING", "ALTER TABLE ... REPLICA IDENTITY FULL"
        ),
    ),
    10,
)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "examine", lambda config: REPORT)
    (tmp_path / "shop.yaml").write_text(MINIMAL)
    return str(tmp_path / "shop.yaml")


def exit_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_findings_are_a_table_with_the_fix_and_their_number(file, capsys):
    assert exit_of("check", "--config", file) == 10
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if "REPLICA IDENTITY NOTHING" in line)
    assert "error" in row
    assert "public.[bold]a" in row
    assert "ALTER TABLE ... REPLICA IDENTITY FULL" in row
    assert out.endswith("1 errors, 0 warnings, 1 in order\n")


def test_findings_are_an_object_for_programs(file, capsys):
    assert exit_of("check", "--config", file, "--format", "json") == 10
    shown = json.loads(capsys.readouterr().out)
    assert shown["exit_code"] == 10
    assert shown["findings"][0] == {"level": "ok", "subject": "wal_level", "found": "logical", "fix": ""}


def test_a_wrong_configuration_is_told_before_anything_is_asked(tmp_path, capsys):
    (tmp_path / "shop.yaml").write_text(MINIMAL.replace("name", "nam"))
    assert exit_of("check", "--config", str(tmp_path / "shop.yaml")) == 2
    assert "did you mean name?" in capsys.readouterr().err


def test_another_format_is_refused(file, capsys):
    assert exit_of("check", "--config", file, "--format", "xml") == 2
    assert "'table', 'json'" in capsys.readouterr().err
