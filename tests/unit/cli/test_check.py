import json

import pytest
from click import unstyle

from cdcd.cli.__main__ import main
from cdcd.cli.check import lines
from cdcd.telemetry.findings import Finding
from cdcd.tools.checks import run as preflight
from cdcd.tools.checks.run import CheckReport

MINIMAL = "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'broker:9092'}\n"
KEYLESS = Finding(
    "error",
    "table.key",
    "public.[bold]a",
    "REPLICA IDENTITY NOTHING",
    "ALTER TABLE ... REPLICA IDENTITY FULL",
)
REPORT = CheckReport((Finding("ok", "wal.level", "wal_level", "logical"), KEYLESS), 10)


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


def test_problems_come_first_with_their_code_and_fix_and_the_rest_is_folded(file, capsys):
    assert exit_of("check", "--config", file) == 10
    assert capsys.readouterr().out.splitlines() == [
        "error    public.[bold]a  (table.key)",
        "         REPLICA IDENTITY NOTHING",
        "         Fix: ALTER TABLE ... REPLICA IDENTITY FULL",
        "",
        "ok       wal_level",
        "",
        "1 error, 0 warnings, 1 in order",
    ]


def test_what_is_in_order_is_shown_when_asked_for(file, capsys):
    exit_of("check", "--config", file, "--all")
    assert "ok       wal_level  (wal.level)\n         logical\n" in capsys.readouterr().out


def test_300_tables_in_order_are_one_paragraph_of_80_columns():
    topics = [
        Finding("ok", "topic.state", f"topic shop.public.table_{number}", "1 partition, 1 replica")
        for number in range(300)
    ]
    warning = Finding("warning", "wal.keep", "max_slot_wal_keep_size", "unlimited: " + "word " * 30, "SET it")
    findings = [*topics, Finding("ok", "wal.level", "wal_level", "logical"), warning]
    shown = [unstyle(line) for line in lines(findings, 80)]
    assert len(shown) < 14
    assert max(map(len, shown)) <= 80
    assert shown[0] == "warning  max_slot_wal_keep_size  (wal.keep)"
    assert "ok       topic shop.public.table_0 and 299 similar ones, wal_level" in shown


def test_findings_are_an_object_for_programs(file, capsys):
    assert exit_of("check", "--config", file, "--format", "json") == 10
    shown = json.loads(capsys.readouterr().out)
    assert shown["exit_code"] == 10
    assert shown["findings"][0] == {
        "level": "ok",
        "code": "wal.level",
        "subject": "wal_level",
        "found": "logical",
        "fix": "",
    }


def test_a_wrong_configuration_is_told_before_anything_is_asked(tmp_path, capsys):
    (tmp_path / "shop.yaml").write_text(MINIMAL.replace("name", "nam"))
    assert exit_of("check", "--config", str(tmp_path / "shop.yaml")) == 2
    assert "did you mean name?" in capsys.readouterr().err


def test_another_format_is_refused(file, capsys):
    assert exit_of("check", "--config", file, "--format", "xml") == 2
    assert "'text', 'json'" in capsys.readouterr().err
