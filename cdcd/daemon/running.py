"""The process of the daemon: its log, its HTTP server, its sessions, and its exit code."""

import asyncio
import threading
from collections.abc import Callable
from traceback import format_exception
from typing import TYPE_CHECKING

from cdcd.adapters.credentials.weaknesses import refuse_weaknesses
from cdcd.config.loading import Config
from cdcd.core.engine.startup_rules import GapChoice
from cdcd.core.errors import CdcdError, cause, out_of_files
from cdcd.core.facts.process import Crashed
from cdcd.core.facts.start import Started
from cdcd.daemon import process
from cdcd.daemon.process import raise_file_limit
from cdcd.daemon.signal_watch import signals_of
from cdcd.daemon.snapshot_driver import MakeComparer
from cdcd.daemon.supervisor import Supervisor, failed
from cdcd.telemetry.actions import Ask
from cdcd.telemetry.daemon_pages import serve_http
from cdcd.telemetry.http_client import page_url
from cdcd.telemetry.logs import configure_logging
from cdcd.telemetry.look_ups import Tools
from cdcd.telemetry.state import Telemetry
from cdcd.telemetry.terminal_text import terminal

if TYPE_CHECKING:
    from cdcd.telemetry.otlp import Otlp


def run(
    config: Config,
    *,
    accept_gap: bool = False,
    reread_file: Callable[[], Config] | None = None,
    ask: Ask | None = None,
    runbook: Callable[[], str] | None = None,
    tools: Tools | None = None,
    make_comparer: MakeComparer | None = None,
    heals_now: bool = False,
) -> int:
    """Run the daemon until it is told to stop; returns the process's exit code (`errors.EXIT_CODES`).

    Args:
        reread_file: reads the configuration again, for SIGHUP; None: SIGHUP reads the secrets' files only.
        ask: carries out what is asked for by HTTP and in `snapshot.signal_topic`; None: nothing can be asked for.
        runbook: reads the runbook, which the HTTP server shows; None: the runbook is not shown.
        tools: checks and looks up records for the HTTP server; None: neither is shown.
        make_comparer: makes what compares topics with tables after a gap; None: no topic can be compared.
        heals_now: True to heal the topics although the slot could be used, and to end when they are healed.

    Raises what ended it only if the log is for people: a log of JSON has the same as its last line.
    """
    otlp = _otlp(config)
    process.settle()
    telemetry = Telemetry(config.name, config.postgres.slot)
    screen = terminal(lambda: telemetry.snapshot)
    observe = telemetry.counting(telemetry.problems.observing(configure_logging(config.log, screen)))
    telemetry.reach.observe(observe)
    if otlp is not None:
        otlp.begin(telemetry, observe)
    supervisor = Supervisor(
        config,
        telemetry,
        observe,
        gap=GapChoice(accept_gap, heals_now),
        screen=screen,
        reread_file=reread_file,
        make_comparer=make_comparer,
    )
    signals = None if ask is None else signals_of(config, ask, observe, telemetry)
    threading.excepthook = supervisor.thread_failed
    try:
        raise_file_limit()
        refuse_weaknesses(config)
        with serve_http(
            config, telemetry, lambda: supervisor.config, ask, observe, runbook=runbook, tools=tools
        ) as address:
            observe(Started(name=config.name, http=address))
            if screen is not None and address and not supervisor.logs_json:
                screen.write(f"The page of this pipeline: {page_url(config.http, address)}\n")
            if signals is not None:
                signals.start()
            return asyncio.run(supervisor.run())
    except Exception as error:
        worst = cause(error) if isinstance(error, ExceptionGroup) else error
        worst = out_of_files(worst) or worst
        kept = supervisor.kept_slot()
        if isinstance(worst, CdcdError):
            worst.hint = f"{worst.hint} {kept}".strip()
            observe(failed(worst))
        if not supervisor.logs_json:
            raise
        if isinstance(worst, CdcdError):
            return worst.exit_code
        observe(
            Crashed(
                error=type(worst).__name__, message=str(worst), traceback="".join(format_exception(worst))
            )
        )
        return CdcdError.exit_code
    finally:
        threading.excepthook = threading.__excepthook__
        if signals is not None:
            signals.stop()
        if otlp is not None:
            otlp.close()
        if screen is not None:
            screen.close()


def _otlp(config: Config) -> "Otlp | None":
    """Return the exporters; None if there is no collector. ConfigError: the extra is not installed."""
    if config.otlp.endpoint is None:
        return None
    from cdcd.telemetry.otlp import Otlp  # noqa: PLC0415  few have a collector, and it loads Prometheus' client

    return Otlp(config.otlp, config.name)
