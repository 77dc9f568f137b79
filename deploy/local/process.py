"""Child processes that cannot outlive us, under a user that PostgreSQL accepts, on ports that stay ours.

The rule: however this process ends, its servers end. A normal exit and an exception stop them by `atexit`; a
SIGKILL of this process is answered by the kernel, which sends each child its parent-death signal
(prctl(2), PR_SET_PDEATHSIG, set by setpriv(1)). The kernel means the *thread* that started the child: start
servers from the main thread, or from one that lives as long as they shall.
"""

import atexit
import contextlib
import os
import pwd
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_children: set["Child"] = set()


@dataclass(frozen=True, slots=True)
class Account:
    """A user to run as."""

    name: str
    uid: int
    gid: int


def _unprivileged() -> Account:
    """We ourselves, or, as root, `postgres` where there is one, else `nobody`: PostgreSQL refuses to be root."""
    names = ["postgres", "nobody"] if os.geteuid() == 0 else [pwd.getpwuid(os.geteuid()).pw_name]
    for name in names:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise RuntimeError("There is neither a user postgres nor a user nobody.")


UNPRIVILEGED: Final = _unprivileged()


def can_reach(path: Path, account: Account) -> bool:
    """Whether `account` may walk through every existing folder on the way to `path`."""
    for folder in (path, *path.parents):
        if not folder.is_dir():
            continue
        status = folder.stat()
        if status.st_uid == account.uid:
            bit = 0o100
        elif status.st_gid == account.gid:
            bit = 0o010
        else:
            bit = 0o001
        if not status.st_mode & bit:
            return False
    return True


class Child:
    """One server process in a session of its own, so that a terminal's Ctrl-C reaches only us."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        last_signal: signal.Signals,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        account: Account | None = None,
    ) -> None:
        """Start `command` with its output appended to `log`; `last_signal` ends it when we are no more."""
        prefix: list[str | Path] = ["setpriv", "--pdeathsig", last_signal.name]
        if account is not None and account.uid != os.geteuid():
            prefix += ["--reuid", str(account.uid), "--regid", str(account.gid), "--clear-groups"]
        self._last_signal = last_signal
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*prefix, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        _children.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal_all(self, number: signal.Signals) -> None:
        """To it and all its descendants, itself first, so that it has no new ones after SIGSTOP."""
        self.signal(number)
        for pid in _descendants(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """The exit status; `subprocess.TimeoutExpired` when it is still running after `timeout_s`."""
        status = self._process.wait(timeout_s)
        _children.discard(self)
        return status

    def kill(self) -> None:
        """SIGKILL to it and all its descendants at once, as a power cut would; returns when none runs any more.

        PostgreSQL's backends are sessions of their own, hence the walk over /proc instead of killpg(3).
        """
        if not self.is_running():
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        family = [self.pid, *_descendants(self.pid)]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait(10)
        while any(_is_alive(pid) for pid in family):
            time.sleep(0.005)

    def end(self) -> None:
        """The last resort at our own exit: `last_signal`, and SIGKILL soon after."""
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
                self.signal(self._last_signal)
            try:
                self.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()
        _children.discard(self)


@atexit.register
def _end_all() -> None:
    for child in list(_children):
        child.end()


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and parent of a process, None when it is gone (proc(5), /proc/pid/stat)."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return after_name[0], int(after_name[1])


def _is_alive(pid: int) -> bool:
    status = _stat(pid)
    return status is not None and status[0] not in "ZX"


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names only; Path objects would be thrown away
        if entry.isdigit() and (status := _stat(int(entry))) is not None:
            parents.setdefault(status[1], []).append(int(entry))
    found: list[int] = []
    todo = [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def free_port() -> int:
    """A loopback port that nobody listens on, below the range from which the kernel takes client ports.

    Inside that range somebody's connection could be given the port while its server is down for a restart. The port is
    this process's until it ends: other processes that ask here are given other ports, also before a server listens on
    it and while the server is down.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(15_000, low) if low > 20_000 else 0  # noqa: S311
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            if _reserve(found):
                return found
    raise OSError("No free loopback port found.")


def _reserve(port: int) -> bool:
    """Take the port among all processes of this machine that call `free_port`; False: another one has it.

    The reservation is the name of a socket in the abstract namespace (unix(7)): it is no file, and the kernel frees it
    when this process ends, however that happens.
    """
    sign = socket.socket(socket.AF_UNIX)
    try:
        sign.bind(f"\0cdcd.loopback.{port}")
    except OSError:
        sign.close()
        return False
    sign.detach()  # open until the process ends
    return True
