"""A certification authority of one test, by the openssl command."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from deploy.local.process import UNPRIVILEGED

KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
LOOPBACK: Final = "IP:127.0.0.1,DNS:localhost"


class Authority:
    """Signs certificates into `folder`, which also a server's unprivileged user may walk through."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        folder.mkdir(mode=0o711, parents=True)
        self._folder = folder
        self.certificate = folder / "ca.pem"
        self._key = folder / "ca.key"
        self._openssl(
            "req", "-x509", *KEY, "-keyout", self._key, "-out", self.certificate, "-subj", f"/CN={name}"
        )
        self.certificate.chmod(0o644)

    def issue(self, common_name: str, *, names: str = LOOPBACK, expired: bool = False) -> Path:
        """A certificate with its key in one PEM file of our own, mode 0600; `names` as subjectAltName has them."""
        stem = f"{common_name}{'-expired' if expired else ''}-{names.replace(':', '')}"
        key, request, signed = (self._folder / f"{stem}.{ending}" for ending in ("key", "csr", "crt"))
        extensions = self._folder / f"{stem}.ext"
        extensions.write_text(f"subjectAltName={names}\n")
        self._openssl("req", *KEY, "-keyout", key, "-out", request, "-subj", f"/CN={common_name}")
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
            "-out", signed, "-days", "-1" if expired else "2", "-extfile", extensions,
        )  # fmt: skip
        both = self._folder / f"{stem}.pem"
        both.touch(mode=0o600)
        both.write_text(key.read_text() + signed.read_text())
        return both

    def _openssl(self, *arguments: str | Path) -> None:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def for_server(certificate: Path) -> Path:
    """A copy that the user of a PostgreSQL server owns, without whom it would not start."""
    copy = certificate.with_suffix(".server.pem")
    shutil.copyfile(certificate, copy)
    os.chown(copy, UNPRIVILEGED.uid, UNPRIVILEGED.gid)
    copy.chmod(0o600)
    return copy
