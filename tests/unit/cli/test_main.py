import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cdcd import __version__
from cdcd.cli.__main__ import COMMANDS, cli, main
from cdcd.core.errors import EXIT_CODES, CdcdError, ConfigError, FencedError, LimitError, TransientError

ROOT = Path(__file__).parents[3]


def cdcd(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cdcd.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def failing(monkeypatch):
    """Makes `cdcd version` raise."""

    def fail_with(error: BaseException) -> None:
        def command() -> None:
            raise error

        module = importlib.import_module("cdcd.cli.version")
        monkeypatch.setattr(module, "command", click.Command("version", callback=command))

    return fail_with


def exit_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_help_names_every_command():
    result = cdcd("--help")
    assert result.returncode == 0
    for name, meaning in COMMANDS.items():
        assert f"  {name}" in result.stdout
        assert meaning in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_of_itself_what_the_list_says(name):
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.help is not None
    assert command.help.split("\n")[0] == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name):
    result = CliRunner().invoke(cli, [name, "-h"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: cli {name}")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["config", "--help"], ["check", "--help"]]
)
def test_help_loads_nothing_heavy(arguments):
    code = f"""
import sys
from cdcd.cli.__main__ import main
try:
    main({arguments})
except SystemExit:
    heavy = {{"pydantic", "psycopg", "confluent_kafka", "prometheus_client", "structlog", "rich", "yaml", "asyncio"}}
    assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=60)


def test_the_version_is_the_packages():
    assert cdcd("--version").stdout == f"cdcd {__version__}\n"


def test_an_unknown_command_is_an_error_of_one_line_with_a_hint(capsys):
    assert exit_of("rnu") == 2
    assert capsys.readouterr().err == (
        "error: No such command 'rnu'. Did you mean run?\nhint: `cdcd --help` lists commands and options.\n"
    )


def test_an_unknown_option_is_an_error_of_one_line_with_a_hint(capsys):
    assert exit_of("version", "--loud") == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: No such option")
    assert second == "hint: `cdcd version --help` lists commands and options."


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("it is wrong", hint="mend it"), 2),
        (FencedError("it is wrong", hint="mend it"), 7),
        (TransientError("it is wrong", hint="mend it"), TransientError.exit_code),
        (BaseExceptionGroup("", [TransientError("other"), LimitError("it is wrong", hint="mend it")]), 8),
    ],
)
def test_an_error_is_one_line_with_a_hint_and_the_exit_code_of_its_kind(failing, capsys, error, code):
    failing(error)
    assert exit_of("version") == code
    assert capsys.readouterr().err == "error: it is wrong\nhint: mend it\n"


def test_an_error_without_a_hint_is_one_line(failing, capsys):
    failing(ConfigError("it is wrong"))
    assert exit_of("version") == 2
    assert capsys.readouterr().err == "error: it is wrong\n"


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("bug"), BaseExceptionGroup("", [ZeroDivisionError("bug")])]
)
def test_a_bug_is_not_made_to_look_like_an_error(failing, error):
    failing(error)
    with pytest.raises(type(error)):
        main(["version"])


def test_an_interrupt_is_130(failing):
    failing(KeyboardInterrupt())
    assert exit_of("version") == 130


def test_a_reader_that_has_seen_enough_is_no_crash():
    result = subprocess.run(
        f"{sys.executable} -m cdcd.cli config --reference | head -n 1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout.startswith("# ")
    assert "Traceback" not in result.stderr


def test_every_exit_code_of_an_error_is_documented():
    kinds: list[type[CdcdError]] = [CdcdError]
    while kinds:
        kind = kinds.pop()
        assert kind.exit_code in EXIT_CODES
        kinds += kind.__subclasses__()


@pytest.mark.parametrize("arguments", [(), ("handover",), ("snapshot",)])
def test_a_command_that_needs_one_more_word_shows_its_help(arguments: tuple[str, ...]):
    shown = cdcd(*arguments)
    assert shown.returncode == 2
    assert shown.stderr.startswith("Usage: cdcd")
    assert "error:" not in shown.stderr


def test_a_command_that_is_mistyped_gets_the_nearest_name():
    refused = cdcd("statsu")
    assert refused.returncode == 2
    assert "error: No such command 'statsu'. Did you mean status?" in refused.stderr


def test_no_help_shows_a_mark_that_is_for_click():
    for name in COMMANDS:
        assert "\\b" not in CliRunner().invoke(cli, [name, "--help"]).output, name


def test_it_shows_the_versions_of_what_a_bug_may_depend_on(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["version"])
    assert caught.value.code == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(shown) == ["cdcd", "python", "psycopg", "libpq", "librdkafka"]
    assert re.fullmatch(rf"{re.escape(__version__)} \((pure Python|compiled)\)", shown["cdcd"])
    for version in shown.values():
        assert re.match(r"\d+\.\d+", version)
