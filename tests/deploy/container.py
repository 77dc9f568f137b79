"""A container without an engine: a process with a read-only file system and without privileges, as in Kubernetes.

A container here is the image's root file system mounted read-only in namespaces of its own, where the process is
pid 1 under the image's user. It shares the machine's network, to reach servers on the loopback.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from deploy.images import Images

_ENTER: Final = """
set -e
mkdir -p "$ROOT/etc/cdcd"
cp /etc/hosts "$ROOT/etc/hosts"
mount --bind "$ROOT" "$ROOT"
mount --bind "$CONFIG" "$ROOT/etc/cdcd"
mount -o remount,bind,ro "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs -o size=512m,mode=1777 spool "$ROOT/var/spool/cdcd"
exec chroot "$ROOT" setpriv --reuid "${OWNER%:*}" --regid "${OWNER#*:}" --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all -- "$@"
"""
"""$OWNER is the image's user; $@ its entry point. Every step is an exec: the entry point becomes pid 1."""


class Container:
    """The image's entry point as pid 1 in a root file system that it cannot write to."""

    def __init__(
        self,
        images: Images,
        image: str,
        config_folder: Path,
        log: Path,
        environment: Mapping[str, str],
        *,
        entrypoint: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        """`config_folder` is mounted at /etc/cdcd; `environment` is over the image's own.

        `entrypoint` and `arguments` are in place of the image's, as an engine's options are.
        """
        settings = images.settings(image)
        self._images = images
        self.name, root = images.mounted(image)
        self.environment = {**dict(one.split("=", 1) for one in settings["Env"]), **environment}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--"),
                    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"),
                    *("sh", "-c", _ENTER, "sh", *(entrypoint or settings["Entrypoint"])),
                    *(arguments or (() if entrypoint else settings["Cmd"])),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **self.environment,
                    "ROOT": str(root),
                    "CONFIG": str(config_folder),
                    "OWNER": settings["User"],
                },
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_running():
            # By its own number: a process that changed its user does not hear of its parent's death.
            with suppress(IndexError, ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Of the container's pid 1, as the machine counts."""
        outer = self._process.pid
        return int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> int:
        """The exit code, when it has ended by itself."""
        return self._process.wait(timeout_s)

    def terminate(self, timeout_s: float) -> int:
        """SIGTERM to pid 1, as every engine does; the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self._process.wait(timeout_s)

    def execute(self, command: Sequence[str]) -> str:
        """Run a command beside it, in the same image and network; LocalServerError when it fails."""
        variables = [part for pair in self.environment.items() for part in ("--env", "=".join(pair))]
        return self._images.buildah("run", "--isolation", "chroot", *variables, self.name, "--", *command)
