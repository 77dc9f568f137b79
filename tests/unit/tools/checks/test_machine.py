"""The port and the directories, on this machine."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from cdcd.config.loading import Config, parse_config
from cdcd.daemon.process import spool_problem
from cdcd.telemetry.daemon_pages import serve_http
from cdcd.telemetry.findings import Finding
from cdcd.telemetry.state import Telemetry
from cdcd.tools.checks import machine
from cdcd.tools.checks.machine import examine


def configured(tmp_path: Path, port: int, name: str = "shop") -> Config:
    return parse_config(
        f"name: {name}\npostgres: {{dsn: host=db}}\nkafka: {{bootstrap_servers: 'b:1'}}\n"
        f"http: {{host: 127.0.0.1, port: {port}}}\nspool: {{directory: {tmp_path}/spool}}\n",
        {},
    )


@pytest.fixture
def port() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        yield taken.getsockname()[1]


def about(code: str, config: Config) -> Finding:
    (finding,) = [one for one in examine(config) if one.code == code]
    return finding


def test_a_machine_in_order_is_left_as_it_is(tmp_path: Path):
    assert {one.level for one in examine(configured(tmp_path, 0))} == {"ok"}
    assert not list(tmp_path.iterdir())


def test_code_that_is_not_compiled_is_a_warning_with_what_it_costs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "is_compiled", lambda: False)
    finding = machine.check_code()
    assert (finding.code, finding.level) == ("machine.compiled", "warning")
    assert "half as many rows a second" in finding.found
    # The finding has one line, because the findings about tables matter more.
    assert (len(finding.found) < 70, finding.fix) == (True, "")
    monkeypatch.setattr(machine, "is_compiled", lambda: True)
    assert machine.check_code().level == "ok"


def test_a_port_that_another_has_is_an_error(tmp_path: Path, port: int):
    finding = about("http.port", configured(tmp_path, port))
    assert (finding.level, "Set http.port to another" in finding.fix) == ("error", True)


@pytest.mark.parametrize(("name", "level"), [("shop", "ok"), ("other", "error")])
def test_a_port_that_this_pipelines_daemon_has_is_in_order(tmp_path: Path, name: str, level: str):
    running = configured(tmp_path, 0, name)
    with serve_http(running, Telemetry(name, "slot")) as address:
        port = int(address.rpartition(":")[2])
        assert about("http.port", configured(tmp_path, port)).level == level


def test_a_certificate_that_cannot_be_used_is_an_error_and_without_one_there_is_no_finding(tmp_path: Path):
    plain = configured(tmp_path, 0)
    assert [one for one in examine(plain) if one.code == "http.certificate"] == []
    files = {"certificate_file": tmp_path / "tls.crt", "key_file": tmp_path / "tls.key"}
    finding = about(
        "http.certificate", plain.model_copy(update={"http": plain.http.model_copy(update=files)})
    )
    assert (finding.level, "PEM" in finding.fix) == ("error", True)


def test_a_spool_directory_that_a_start_can_make_is_in_order(tmp_path: Path):
    assert spool_problem(tmp_path / "a" / "b") is None
    (tmp_path / "file").write_text("")
    problem = spool_problem(tmp_path / "file" / "spool")
    assert problem is not None
    assert f"Not a directory below {tmp_path}/file" in problem.message
    assert f"Create {tmp_path}/file/spool" in problem.hint


def test_the_directory_of_a_durable_log_is_looked_at_with_its_room(tmp_path: Path):
    plain = configured(tmp_path, 0)
    assert [one for one in examine(plain) if one.code == "spool.durable"] == []
    durable = {"durable": True, "durable_directory": tmp_path / "log", "durable_bytes_max": 1 << 20}

    def found(**more: object) -> Finding:
        spool = plain.spool.model_copy(update={**durable, **more})
        return about("spool.durable", plain.model_copy(update={"spool": spool}))

    assert found().level == "ok"
    assert found(durable_bytes_max=1 << 60).level == "warning"
    (tmp_path / "file").write_text("")
    assert found(durable_directory=tmp_path / "file" / "log").level == "error"


def test_a_disk_that_has_no_room_for_the_spool_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = parse_config(
        "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\nhttp: {port: 0}\n"
        f"spool: {{directory: {tmp_path}/spool}}\n",
        {},
    )
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    found = about("spool.directory", config)
    assert (found.level, "3 MiB are free" in found.found) == ("warning", True)
    small = config.spool.model_copy(update={"disk_bytes_max": 2 << 20})
    assert about("spool.directory", config.model_copy(update={"spool": small})).level == "ok"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_spool_directory_that_belongs_to_another_is_an_error(tmp_path: Path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    problem = spool_problem(tmp_path)
    assert problem is not None
    assert "Permission denied" in problem.message


@pytest.mark.parametrize(("strict", "level"), [("false", "warning"), ("true", "error")])
def test_secrets_that_others_can_get_are_findings(tmp_path: Path, strict: str, level: str):
    token = tmp_path / "token"
    token.write_text("t" * 16)
    token.chmod(0o644)
    config = parse_config(
        f"name: shop\npostgres: {{dsn: host=db}}\nkafka: {{bootstrap_servers: 'b:1'}}\nsecurity: {{strict: {strict}}}\n"
        f"http: {{port: 0, token_file: {token}}}\nspool: {{directory: {tmp_path}/spool}}\n",
        {},
    )
    assert {
        (about(code, config).level, about(code, config).subject) for code in ("secret.file", "secret.weak")
    } == {
        (level, "http.token_file"),
        (level, "http.token"),
    }


@pytest.mark.parametrize(("limit", "level"), [(20, "error"), (60, "warning"), (1024, "ok"), (None, "ok")])
def test_a_limit_on_open_files_is_compared_with_what_the_configuration_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, level: str
):
    monkeypatch.setattr("cdcd.tools.checks.machine.file_limit", lambda: limit)
    finding = about("machine.files", configured(tmp_path, 0))
    assert finding.level == level
    assert ("ulimit -n" in finding.fix) == (level != "ok")
