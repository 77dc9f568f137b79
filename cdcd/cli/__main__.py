"""`cdcd`: the commands, and how a failure becomes a line on standard error and an exit code.

A command's module is imported when the command is asked for, and what is heavy in it when it runs: `cdcd
--help` and shell completion answer at once, and `cdcd run` fails on a wrong configuration before anything
else is loaded.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final, NoReturn

import click

from cdcd import __version__
from cdcd.cli.output import say
from cdcd.core.errors import CdcdError, cause, out_of_files

COMMANDS: Final[Mapping[str, str]] = {
    "init": "Write a first cdcd.yaml, and the SQL that a DBA runs.",
    "adopt": "Take over from a Debezium connector for PostgreSQL.",
    "handover": "Move a pipeline to another PostgreSQL server.",
    "run": "Stream committed changes to Kafka until stopped.",
    "check": "Check PostgreSQL, Kafka and the configuration, and print fixes.",
    "status": "Show the health of a pipeline, its problems and their fixes.",
    "top": "Show a running daemon on the terminal, live.",
    "mirror": "Keep tables in Apache Iceberg or Delta Lake equal to the source.",
    "snapshot": "Ask a running daemon to read tables, and show the progress.",
    "tables": "Show the state of each table, stop a table, or bring it back.",
    "tail": "Show changes as they come, from the topics or a slot.",
    "trace": "Follow one row to its records in Kafka.",
    "bench": "Measure the rate and latency of a daemon with your servers.",
    "record": "Record the stream of a temporary slot into files.",
    "replay": "Replay a recording through the engine, or make it pseudonymous.",
    "verify": "Compare the topics, or a mirror, with the tables at one moment.",
    "drop": "Remove the slot and everything else that a pipeline left.",
    "heal": "Make the topics equal to the tables again.",
    "reset": "Restart a stopped pipeline without its slot and checkpoint.",
    "downgrade": "Let the previous version continue a stopped pipeline.",
    "config": "Show the configuration in effect, its schema or its reference.",
    "version": "Show the versions of cdcd and of what it uses.",
    "completion": "Print the completion script for a shell.",
}
"""Each is the `command` of the module of its name, in the order of `cdcd --help`."""

INTERRUPTED: Final = 130
"""What shells give for SIGINT: 128 + 2."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"cdcd.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], COMMANDS, 1)
            if not near:
                raise
            raise click.UsageError(f"No such command '{args[0]}'. Did you mean {near[0]}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Committed PostgreSQL changes to Kafka, exactly once, in commit order.

    Begin with `cdcd init`, which writes the first configuration and the SQL for the database. Then `cdcd check
    --config FILE` says what is missing, and `cdcd run --config FILE` starts. `cdcd config --reference` shows every
    key of the file.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: with its code, or with that of the error it raised (`errors.EXIT_CODES`)."""
    try:
        code = cli.main(args=arguments, prog_name="cdcd", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        # A command that needs one more word shows which there are.
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "cdcd"
        fail(error.format_message(), f"`{path} --help` lists commands and options.", error.exit_code)
    except click.ClickException as error:
        fail(error.format_message(), "", error.exit_code)
    except CdcdError as error:
        fail(error.message, error.hint, error.exit_code)
    except BaseExceptionGroup as group:
        worst = cause(group)
        worst = out_of_files(worst) or worst
        if not isinstance(worst, CdcdError):
            raise
        fail(worst.message, worst.hint, worst.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader, `head` for example, has what it wanted. What is left in the buffer must not be tried
        # again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        full = out_of_files(error)
        if full is None:
            raise
        fail(full.message, full.hint, full.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str, hint: str, code: int) -> NoReturn:
    """Say on standard error what went wrong and what to do, and exit."""
    say(f"error: {message}", err=True)
    if hint:
        say(f"hint: {hint}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
