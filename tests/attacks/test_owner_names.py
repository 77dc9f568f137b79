"""The owner of a schema chooses the names of tables, and wants words in a DBA's shell, terminal, log or browser."""

import io
import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cdcd.cli.check import lines as check_lines
from cdcd.cli.output import say
from cdcd.config.sections.process import LogConfig
from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.routing import parse_table, table_named
from cdcd.core.facts.process import Failed
from cdcd.core.facts.tables import TableAdded
from cdcd.core.pasted import identifier, literal, on_table, qualified, quoted, read_table, shell
from cdcd.core.visible import visible
from cdcd.telemetry.findings import Finding
from cdcd.telemetry.html_page import html_page
from cdcd.telemetry.logs import configure_logging
from cdcd.telemetry.metrics import registry_for
from cdcd.telemetry.state import Telemetry
from cdcd.tools.operations.change_lines import ReadRecord, as_json
from cdcd.tools.operations.top import DaemonAnswer
from cdcd.tools.operations.top import lines as top_lines
from tests.attacks.checkpoints import cases

SHELL = (
    "$(touch pwned)",
    "`touch pwned`",
    "a; touch pwned",
    "a\ntouch pwned",
    "a' ; touch pwned '",
    'a" ; touch pwned "',
    "a && touch pwned",
    "| touch pwned",
    "--config=/etc/passwd",
    "-rf",
    "a b",
    "*",
    "~root",
    "$HOME",
    "!!",
    "a\\",
    "Odd Name",
    'q"uo""te',
    "#",
    "ünï",
)
HIDDEN = (
    "\u202e",
    "\u200b",
    "\u2066",
    "\x1b[31m",
    "\x07",
    "\r",
    "\x85",
    "\u2028",
    "\ufeff",
    "\u00ad",
    "\x9b2J",
    "\U000e0041",
    "\ufdd0",
    "\uffff",
)
"""RIGHT-TO-LEFT OVERRIDE, zero width, isolates, escape sequences, bell, carriage return, NEL and more."""


def run(command: str, folder: Path) -> list[str]:
    """The arguments that `cdcd` gets where a person pastes the command into a shell."""
    program = folder / "bin" / "cdcd"
    program.parent.mkdir(exist_ok=True)
    program.write_text('#!/bin/sh\nfor each in "$@"; do printf "%s\\0" "$each"; done > "$OUT"\n')
    program.chmod(0o755)
    out = folder / "out"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={"PATH": f"{program.parent}:{os.environ['PATH']}", "OUT": str(out), "HOME": "/nowhere"},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "pwned").exists()
    return out.read_bytes().decode().split("\0")[:-1]


@pytest.mark.worst
@pytest.mark.attack(gains="a command of the attacker's in the shell of the DBA", before="failed")
@pytest.mark.parametrize("name", [*SHELL, *HIDDEN])
def test_a_printed_command_is_pasted(name: str, tmp_path: Path):
    table = f"app.{name}"
    given = run(visible(read_table(table), lines=True), tmp_path)
    assert given[:3] == ["snapshot", "start", "--table"]
    assert table_named(given[3]) == table
    assert parse_pattern(given[3]).matches("app", name)
    assert parse_pattern(given[3]).is_literal


@pytest.mark.attack(
    gains="a command of the attacker's in the shell of the DBA, by the event table.added", before="failed"
)
@pytest.mark.parametrize("form", ["json", "console"])
def test_the_command_of_an_event_is_pasted_from_the_log(form: Literal["json", "console"], tmp_path: Path):
    table, stream = "app.$(touch pwned)", io.StringIO()
    observe = configure_logging(LogConfig(level="info", format=form), stream)
    observe(TableAdded(table=table, rows=1, read=False, command=read_table(table)))
    line = stream.getvalue()
    command = (
        json.loads(line)["command"] if form == "json" else line.partition("command=«")[2].partition("»")[0]
    )
    assert table_named(run(command, tmp_path)[3]) == table


@pytest.mark.attack(gains="another statement in the psql of the DBA", before="failed")
@pytest.mark.parametrize(
    "name", [*SHELL, *HIDDEN, "x; DROP TABLE t; --", 'x"; DROP TABLE t; --', "select", "USER"]
)
def test_a_name_in_printed_sql_is_one_name(name: str):
    for text in (identifier(name), quoted(name)):
        if not text.endswith('"'):
            assert text == name
            assert name.isidentifier()
            continue
        inside = text.partition('"')[2][:-1]
        # No quote ends the name early, and nothing in it is hidden.
        assert '"' not in inside.replace('""', "")
        assert visible(text) == text
        assert parse_table(f"s.{text}") == ("s", name)
    assert qualified(f"app.{name}") == f"app.{identifier(name)}"


@pytest.mark.attack(
    gains="another statement in the psql of the DBA, by the name of a prepared transaction", before="failed"
)
@pytest.mark.parametrize("gid", ["x'; DROP TABLE t; --", "a\\' b", "\u202e'; --", "\x1b[31m"])
def test_a_gid_in_printed_sql_is_one_constant(gid: str):
    text = literal(gid)
    inside = text.removeprefix("E")[1:-1]
    assert "'" not in inside.replace("''", "")
    assert visible(text) == text
    if text.startswith("E"):
        assert inside.replace("\\\\", "").count("\\") == inside.count("\\U")


@pytest.mark.attack(gains="an option of the attacker's in a command of the DBA", before="failed")
@pytest.mark.parametrize("option", ["--snapshot", "--relayout", "--table"])
def test_a_name_is_the_argument_of_its_option(option: str):
    for name in SHELL:
        words = shlex.split(on_table(option, f"app.{name}"))
        assert words[0] == option
        assert len(words) == 2


@pytest.mark.attack(gains="a command of the attacker's, by the name of a file", before="failed")
def test_a_file_in_a_printed_command_is_one_word():
    for name in SHELL:
        assert shlex.split(shell("cdcd", "run", "--config", name)) == ["cdcd", "run", "--config", name]


def busy(name: str) -> Telemetry:
    telemetry = Telemetry("shop", "cdcd_shop")
    telemetry.role = "active"
    telemetry.events = {(name, "c"): 3}
    telemetry.problems.note(Failed(error="SinkError", message=name, hint=name, exit_code=4))
    return telemetry


def in_log(form: Literal["json", "console"], name: str) -> str:
    stream = io.StringIO()
    observe = configure_logging(LogConfig(level="info", format=form), stream)
    observe(TableAdded(table=name, rows=1, read=False, command=read_table(name)))
    observe(Failed(error="SinkError", message=name, hint=name, exit_code=4))
    return stream.getvalue()


def in_check(name: str) -> str:
    return click.unstyle("\n".join(check_lines([Finding("error", "topic.state", name, name, name)], 80)))


def in_page(name: str) -> str:
    from cdcd.telemetry.daemon_pages import daemon_status
    from cdcd.telemetry.state import Health

    return html_page(daemon_status(busy(name), Health(True, {}), 1.0, 1.0, 100))


def in_status(name: str) -> str:
    from cdcd.telemetry.daemon_pages import daemon_status
    from cdcd.telemetry.http import json_reply
    from cdcd.telemetry.state import Health

    return json_reply(200, daemon_status(busy(name), Health(True, {}), 1.0, 1.0, 100)).body.decode()


def in_top(name: str) -> str:
    shown = json.loads(in_status(name))
    return "\n".join(line.text for line in top_lines(DaemonAnswer("http://x", shown), "f", 120, 60))


def in_metrics(name: str) -> str:
    return generate_latest(registry_for(busy(name))).decode()


def in_said(name: str) -> str:
    @click.command()
    def command() -> None:
        say(f"{name} and more")
        say(name, err=True)

    return CliRunner().invoke(command).output


def in_tail(name: str) -> str:
    @click.command()
    def command() -> None:
        say(as_json(ReadRecord("t", b"1", json.dumps({"a": name}, ensure_ascii=False).encode(), (), 0, 0)))

    return CliRunner().invoke(command).output


OUTPUTS: dict[str, Callable[[str], str]] = {
    "JSON log": lambda name: in_log("json", name),
    "console log": lambda name: in_log("console", name),
    "check": in_check,
    "page": in_page,
    "/v1/status": in_status,
    "top": in_top,
    "metrics": in_metrics,
    "printed": in_said,
    "tail": in_tail,
}


@pytest.mark.parametrize(
    "output",
    cases(
        {output: output for output in OUTPUTS},
        "a terminal, a log or a page that shows something else than there is",
        failed=OUTPUTS.keys() - {"page", "/v1/status", "top"},
    ),
)
def test_hidden_characters_of_names_are_written_out(output: str):
    for hidden in HIDDEN:
        shown = OUTPUTS[output](f"app.a{hidden}b")
        left = shown.replace("\n", "").replace("\r\n", "")
        assert hidden not in left, (output, hidden)
        assert "app.a" in left
        # Nothing else that is hidden came along.
        assert visible(left) == left


@pytest.mark.attack(
    gains="no metrics of any table, because two samples have the same labels", before="withstood"
)
def test_two_names_that_look_the_same_do_not_end_the_scrape():
    telemetry = Telemetry("shop", "cdcd_shop")
    telemetry.events = {("app.a\u202eb", "c"): 1, ("app.a\\u202eb", "c"): 2, ("app.a\\\\u202eb", "c"): 3}
    text = generate_latest(registry_for(telemetry)).decode()
    found = [
        sample.labels["table"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "cdcd_events_total"
    ]
    assert len(found) == len(set(found)) == 3


@pytest.mark.attack(gains="a script in the browser of who reads the page", before="withstood")
@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "';alert(1)//",
        "</title><script>",
        "javascript:x",
    ],
)
def test_a_name_is_text_on_the_page(name: str):
    page = in_page(f"app.{name}")
    assert "<script>alert(1)" not in page
    assert "<img" not in page
    assert "</title><script>" not in page
    assert 'href="javascript' not in page
