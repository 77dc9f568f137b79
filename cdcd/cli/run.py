"""`cdcd run`: the daemon."""

import gc
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdcd.cli.heal import make_comparer
from cdcd.cli.options import config_option
from cdcd.core.errors import EXIT_CODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdcd.config.loading import Config
    from cdcd.core.snapshot.signals import Signal
    from cdcd.telemetry.actions import Accepted
    from cdcd.telemetry.findings import Finding
    from cdcd.telemetry.html_look_ups import LastRecord

# click re-wraps paragraphs, but not one that begins with \b.
_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:>2}  {meaning}" for code, meaning in EXIT_CODES.items())


@click.command("run", epilog=_EPILOG)
@config_option()
@click.option(
    "--accept-gap",
    is_flag=True,
    help="Continue although slot and checkpoint have a gap between them. Changes that were committed in the gap are "
    "never delivered. Without this option, a gap ends the daemon with exit code 6.",
)
def command(file: Path, *, accept_gap: bool) -> int:
    """Stream committed changes to Kafka until stopped.

    SIGTERM or SIGINT finishes the current batch and exits with 0. A second signal exits at once; the next start
    delivers the rest. SIGHUP reads the configuration again, and the log names the changed keys and those that need a
    restart. A second instance with the same configuration waits and takes over when this one ends.
    """
    # As pid 1 of a container, a signal without a handler is ignored, also while modules load.
    signal.signal(signal.SIGTERM, _leave)
    # Until the daemon listens to it, there is nothing to read again.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    # What is loaded stays: looking through it for garbage again and again is a tenth of the start.
    gc.disable()
    try:
        from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

        config = load_config(file, os.environ)

        from cdcd.daemon import running  # noqa: PLC0415  a wrong configuration is told before the clients are loaded
        from cdcd.telemetry.look_ups import Tools  # noqa: PLC0415
    finally:
        # Or the first allocation would look through it after all.
        gc.freeze()
        gc.enable()
    return running.run(
        config,
        accept_gap=accept_gap,
        reread_file=lambda: load_config(file, os.environ),
        ask=_ask,
        runbook=_runbook,
        tools=Tools(_check, _records),
        make_comparer=make_comparer,
    )


def _runbook() -> str:
    from cdcd.cli.example_files import RUNBOOK, example_files  # noqa: PLC0415  few look at it

    return example_files()[RUNBOOK].decode()


def _ask(config: "Config", signal_: "Signal") -> "Accepted":
    """What `cdcd snapshot` does, for those who ask by HTTP."""
    from cdcd.telemetry import actions  # noqa: PLC0415
    from cdcd.tools.operations.snapshot_request import ask  # noqa: PLC0415  few need it

    notices: list[str] = []
    _, position = ask(config, signal_, notices.append)
    return actions.Accepted(position, tuple(notices))


def _check(config: "Config") -> "Sequence[Finding]":
    from cdcd.tools.checks.run import examine  # noqa: PLC0415  the first look at the page needs it, and not the start

    return examine(config).findings


def _records(config: "Config", table: str) -> "Sequence[LastRecord]":
    from cdcd.tools.operations.trace import last_records  # noqa: PLC0415  few look at it

    return last_records(config, table)


def _leave(_number: int, _frame: object) -> None:
    sys.exit(0)
