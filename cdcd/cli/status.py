"""`cdcd status`: the health of a pipeline, whether its daemon runs or not."""

import json
import os
import shutil
from pathlib import Path

import click

from cdcd.cli.options import config_option, table_form_options, url_option
from cdcd.cli.output import say


@click.command("status")
@config_option()
@table_form_options()
@url_option()
def command(file: Path, form: str, all_tables: bool, url: str) -> int:
    """Show the health of a pipeline, its problems and their fixes.

    Asks PostgreSQL (slot, WAL, instances, publication, prepared transactions), Kafka (the checkpoint) and the daemon's
    HTTP at the same time, and changes nothing. The command also works without a running daemon.

    \b
    Exits with
      0   an instance streams, or reads the initial snapshot, and no error was found (warnings may be shown)
      2   the configuration is wrong
      3   PostgreSQL could not be asked, or its slot is not one for this pipeline
      4   Kafka could not be asked
      6   slot, checkpoint and server do not belong together: cdcd would not go on
      10  both sides answered, and something else is wrong: no instance runs, or it does not stream
      13  nothing else is wrong, and tables are set aside
    """  # noqa: D301  click wants the character, and not a backslash
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.tools.operations.pipeline_problems import exit_code_of  # noqa: PLC0415
    from cdcd.tools.operations.pipeline_status import look  # noqa: PLC0415  a wrong configuration is told first
    from cdcd.tools.operations.status_display import status_lines, status_object  # noqa: PLC0415  likewise

    status = look(config, str(file), url)
    if form == "json":
        say(json.dumps(status_object(status), indent=2, ensure_ascii=False))
    else:
        for line in status_lines(status, shutil.get_terminal_size().columns, all_tables=all_tables):
            say(line)
    return exit_code_of(status)
