import sys
from types import ModuleType

import pytest
from click.testing import CliRunner

from cdcd.cli.__main__ import cli, main
from cdcd.core.errors import EXIT_CODES, PositionError

MINIMAL = "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'broker:9092'}\n"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "shop.yaml").write_text(MINIMAL)
    return str(tmp_path / "shop.yaml")


@pytest.fixture
def daemon(monkeypatch):
    """In place of the real one: notes what it is called with."""
    module = ModuleType("cdcd.daemon.running")
    calls = []

    def run(config, *, accept_gap, reread_file, ask, runbook, tools, make_comparer):
        assert reread_file().name == config.name
        assert runbook().startswith("# Runbook")
        calls.append((config.name, config.http.port, accept_gap))
        return 0

    module.run = run  # type: ignore[attr-defined]
    module.calls = calls  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cdcd.daemon.running", module)
    monkeypatch.setattr("cdcd.daemon.running", module, raising=False)
    return module


def exit_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_it_runs_the_daemon_with_the_configuration(file, daemon, monkeypatch):
    monkeypatch.setenv("CDCD_HTTP__PORT", "0")
    assert exit_of("run", "--config", file) == 0
    assert daemon.calls == [("shop", 0, False)]


def test_a_gap_is_accepted_only_when_asked(file, daemon):
    assert exit_of("run", "--config", file, "--accept-gap") == 0
    assert daemon.calls[0][2] is True


def test_the_file_may_be_named_in_the_environment(file, daemon, monkeypatch):
    monkeypatch.setenv("CDCD_CONFIG", file)
    assert exit_of("run") == 0


def test_the_exit_code_is_the_daemons(file, daemon, capsys):
    def run(_config, *, accept_gap, reread_file, ask, runbook, tools, make_comparer):
        raise PositionError("a gap", hint="look")

    daemon.run = run
    assert exit_of("run", "--config", file) == 6
    assert capsys.readouterr().err == "error: a gap\nhint: look\n"


def test_a_wrong_configuration_is_told_before_anything_starts(tmp_path, daemon, capsys):
    (tmp_path / "shop.yaml").write_text(MINIMAL.replace("name", "nam"))
    assert exit_of("run", "--config", str(tmp_path / "shop.yaml")) == 2
    assert "nam: unknown key; did you mean name?" in capsys.readouterr().err
    assert not daemon.calls


def test_without_a_file_it_says_which_option_is_missing(capsys, monkeypatch):
    monkeypatch.delenv("CDCD_CONFIG", raising=False)
    assert exit_of("run") == 2
    assert "Missing option '--config'" in capsys.readouterr().err


def test_help_lists_the_exit_codes():
    output = CliRunner().invoke(cli, ["run", "--help"], terminal_width=120).output
    for code, meaning in EXIT_CODES.items():
        assert f"{code:>2}  {meaning}" in output
