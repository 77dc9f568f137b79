"""The lab: PostgreSQL and Kafka on known ports of this machine, for the tutorial (`make lab`, `make lab-stop`).

The lab runs until Ctrl-C, SIGTERM or `python -m deploy.lab --stop`, and then removes its data. If a port is in use, the
lab uses a free port and prints it. The servers accept connections from this machine only, without a password.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from deploy.local import (
    KafkaBroker,
    LocalServerError,
    PostgresServer,
    cache_folder,
    client_program,
    free_port,
)

VERSION: Final = 18
DATABASE: Final = "shop"
POSTGRES_PORT: Final = 5432
KAFKA_PORT: Final = 9092
STOP_S: Final = 60.0
TUTORIAL: Final = "docs/tutorial.md"


def usable(port: int) -> int:
    """Return `port`, or a free port if another process listens on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return free_port()
    return port


def lines(postgres_port: int, kafka_port: int, psql: Path | None) -> list[str]:
    """Lines that the lab prints when both servers run.

    `psql` is the path of a downloaded psql, or None if psql is on the PATH.
    """
    said = [
        f"PostgreSQL {VERSION}   postgresql://postgres@localhost:{postgres_port}/{DATABASE}",
        f"Kafka           localhost:{kafka_port}",
    ]
    replaced = ((POSTGRES_PORT, postgres_port), (KAFKA_PORT, kafka_port))
    said += [
        f"Port {usual} is taken: write {port} instead of {usual} in {TUTORIAL}."
        for usual, port in replaced
        if port != usual
    ]
    if psql is not None:
        said.append(f"psql is not on your PATH. To have it in a terminal: alias psql={psql}")
    said.append(f"Next: {TUTORIAL}, in another terminal. Ctrl-C here, or `make lab-stop`, ends the lab.")
    return said


def serve(state: Path, postgres_port: int, kafka_port: int) -> None:
    """Run the servers until SIGINT or SIGTERM."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="cdcd-lab-"))
        # As root, PostgreSQL runs as another user.
        folder.chmod(0o711)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        postgres_port, kafka_port = usable(postgres_port), usable(kafka_port)
        postgres = PostgresServer(VERSION, folder / "postgres", port=postgres_port)
        broker = KafkaBroker(folder / "kafka", port=kafka_port)
        stack.callback(postgres.kill)
        stack.callback(broker.kill)
        broker.begin()
        postgres.start()
        postgres.execute(f"CREATE DATABASE {DATABASE}")
        broker.await_started()
        psql = None if shutil.which("psql") else client_program("psql")
        stack.callback(state.unlink, missing_ok=True)
        state.write_text(json.dumps({"pid": os.getpid()}))
        for line in lines(postgres_port, kafka_port, psql):
            print(line, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
        print("\nEnding the lab …", flush=True)


def stop(state: Path) -> int:
    """End the lab of this clone. Return the exit code: 1 if the lab did not end within STOP_S seconds."""
    pid = running(state)
    if pid is None:
        print("No lab runs.")
        return 0
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while running(state) is not None:
        if time.monotonic() > deadline:
            print(f"The lab (process {pid}) did not end within {STOP_S:.0f} s.", file=sys.stderr)
            return 1
        time.sleep(0.1)
    print("The lab has ended, and its data is removed.")
    return 0


def running(state: Path) -> int | None:
    """Return the process id of the lab. None: no lab runs."""
    with suppress(OSError, ValueError):
        pid = int(json.loads(state.read_text())["pid"])
        # Another process may have the same id by now.
        if b"deploy.lab" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.lab", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--stop", action="store_true", help="end the running lab")
    parser.add_argument("--postgres-port", type=int, default=POSTGRES_PORT)
    parser.add_argument("--kafka-port", type=int, default=KAFKA_PORT)
    options = parser.parse_args(arguments)
    state = cache_folder() / "lab.json"
    if options.stop:
        return stop(state)
    if (pid := running(state)) is not None:
        print(f"The lab runs already, as process {pid}. `make lab-stop` ends it.", file=sys.stderr)
        return 1
    # The signals are blocked until `serve` waits for them, so that they cannot interrupt the start of the servers.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    print(f"Starting PostgreSQL {VERSION} and Kafka …", flush=True)
    try:
        serve(state, options.postgres_port, options.kafka_port)
    except LocalServerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
