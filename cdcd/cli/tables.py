"""`cdcd tables`: the state of each table; a table that is stopped or comes back, while all others go on."""

import json
import os
from pathlib import Path

import click

from cdcd.cli.options import CommandGroup, config_option, table_form_options, url_option
from cdcd.cli.output import say
from cdcd.core.pasted import cdcd
from cdcd.core.snapshot.signals import RESUME_TABLES, STOP_TABLES


@click.group("tables", cls=CommandGroup, invoke_without_command=True)
@config_option(required=False)
@table_form_options()
@url_option()
@click.pass_context
def command(context: click.Context, file: Path | None, form: str, all_tables: bool, url: str) -> int:
    """Show the state of each table, stop a table, or bring it back.

    Without a command: list every table with state, position, lag, rows, last error and the command that helps. Tables
    that need attention come first. POSITION is the LSN up to which Kafka has the changes of the table. It asks
    PostgreSQL, Kafka and the daemon's HTTP, and changes nothing.

    A fault of a table sets that table aside: its later changes have no records, and all other tables go on.

    \b
    Exits with
      0   no table is set aside
      2   the configuration is wrong
      3   PostgreSQL could not be asked
      4   Kafka could not be asked
      13  tables are set aside
    """  # noqa: D301  click wants the character, and not a backslash
    if context.invoked_subcommand is not None:
        return 0
    if file is None:
        raise click.UsageError("Missing option '--config' (env var: 'CDCD_CONFIG').")
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.tools.operations.pipeline_status import look  # noqa: PLC0415  a wrong configuration is told first
    from cdcd.tools.operations.table_list import exit_code_of, table_lines, tables_object  # noqa: PLC0415

    status = look(config, str(file), url)
    if form == "json":
        say(json.dumps(tables_object(status), indent=2, ensure_ascii=False))
    else:
        for line in table_lines(status, all_tables=all_tables):
            say(line)
    return exit_code_of(status)


@command.command("stop")
@config_option()
@click.argument("tables", nargs=-1, required=True, metavar="SCHEMA.TABLE...")
def stop(file: Path, tables: tuple[str, ...]) -> int:
    """Set tables aside: from now on their changes have no records, and all other tables go on."""
    return _ask(file, STOP_TABLES, tables)


@command.command("resume")
@config_option()
@click.argument("tables", nargs=-1, required=True, metavar="SCHEMA.TABLE...")
def resume(file: Path, tables: tuple[str, ...]) -> int:
    """Let tables that are set aside come back: former rows end, the tables are read again, changes go on."""
    return _ask(file, RESUME_TABLES, tables)


def _ask(file: Path, action: str, tables: tuple[str, ...]) -> int:
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.core.snapshot.signals import Signal  # noqa: PLC0415
    from cdcd.tools.operations.sides import check_server  # noqa: PLC0415  a wrong configuration is told first
    from cdcd.tools.operations.snapshot_request import ask  # noqa: PLC0415

    def notice(text: str) -> None:
        say(text, err=True)

    check_server(config, "tables request", notice)
    _, position = ask(config, Signal(pipeline=config.name, action=action, tables=tables), notice)
    say(f"requested at {position}; `{cdcd('tables', '--config', file)}` shows the state")
    return 0
