import json

import pytest
import yaml

from cdcd.cli.__main__ import main
from cdcd.config.reference import reference_yaml
from deploy.local.cache import REPOSITORY

MINIMAL = (
    "name: shop\npostgres: {dsn: 'host=db password=s3cret'}\nkafka: {bootstrap_servers: 'broker:9092'}\n"
)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "shop.yaml").write_text(MINIMAL)
    return str(tmp_path / "shop.yaml")


def exit_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_it_shows_what_is_in_effect_with_secrets_masked(file, capsys, monkeypatch):
    monkeypatch.setenv("CDCD_TOPICS__PREFIX", "eu")
    assert exit_of("config", "--config", file) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["postgres"]["dsn"] == "host=db password=***"
    assert shown["postgres"]["slot"] == "cdcd_shop"
    assert shown["topics"]["message"] == "eu.message"


def test_the_schema_needs_no_file(capsys):
    assert exit_of("config", "--schema") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "cdcd configuration"


def test_the_reference_needs_no_file(capsys):
    assert exit_of("config", "--reference") == 0
    assert capsys.readouterr().out == reference_yaml()


def test_the_schema_and_the_reference_at_once_are_refused(capsys):
    assert exit_of("config", "--schema", "--reference") == 2
    assert "Use only one of" in capsys.readouterr().err


def test_the_examples_are_written_and_listed(tmp_path, capsys):
    folder = tmp_path / "new" / "examples"
    assert exit_of("config", "--examples", str(folder)) == 0
    listed = capsys.readouterr().out.splitlines()
    assert sorted(listed) == sorted(str(path) for path in folder.rglob("*") if path.is_file())
    for name in ("config/minimal.yaml", "deploy/sql/role.sql", "deploy/prometheus/alerts.yaml"):
        assert (folder / name).read_bytes() == (REPOSITORY / name).read_bytes()
    # Once more is no fault.
    assert exit_of("config", "--examples", str(folder)) == 0


def test_no_file_of_somebody_is_overwritten_by_an_example(tmp_path, capsys):
    mine = tmp_path / "deploy" / "sql" / "role.sql"
    mine.parent.mkdir(parents=True)
    mine.write_text("-- mine")
    assert exit_of("config", "--examples", str(tmp_path)) == 2
    assert f"{mine} exists already" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


def test_a_folder_that_cannot_be_written_is_an_error_with_a_hint(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert exit_of("config", "--examples", str(tmp_path / "file" / "below")) == 2
    assert "cannot write the examples" in capsys.readouterr().err


def test_without_a_file_it_says_which_option_is_missing(capsys, monkeypatch):
    monkeypatch.delenv("CDCD_CONFIG", raising=False)
    assert exit_of("config") == 2
    assert "Missing option '--config'" in capsys.readouterr().err


def test_a_missing_file_is_an_error_with_a_hint(capsys):
    assert exit_of("config", "--config", "/nonexistent.yaml") == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: cannot read the configuration /nonexistent.yaml: No such file or directory"
    assert second.startswith("hint: `cdcd init` writes a first configuration")


def test_every_problem_of_a_wrong_file_is_shown(tmp_path, capsys):
    (tmp_path / "shop.yaml").write_text("name: Shop\nlog: {level: loud}\n")
    assert exit_of("config", "--config", str(tmp_path / "shop.yaml")) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("shop.yaml: 4 problems")
    assert len(lines) == 1 + 4 + 1
