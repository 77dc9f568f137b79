"""TLS of the HTTP server: a certificate that may be renewed while the process runs."""

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from cdcd.config.sections.process import HttpConfig
from cdcd.core.errors import ConfigError

LOOK_S: Final = 10.0
"""Seconds between two checks of the files."""


class Tls:
    """TLS context with the certificate and key of these files, for TLS 1.2 and newer.

    Raises ConfigError if the files cannot be read, or are no certificate with its key.
    """

    def __init__(self, certificate: Path, key: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._files = (certificate, key)
        self._clock = clock
        self._looked_at = clock()
        self._seen = self._versions()
        problem = self._load()
        if problem:
            raise ConfigError(
                f"http.certificate_file and http.key_file cannot be used: {problem}",
                hint="Both must be PEM files that cdcd may read: the certificate with its chain, and its key without "
                "a passphrase.",
            )

    @classmethod
    def of(cls, http: HttpConfig) -> Self | None:
        """Return the configured TLS; None without TLS."""
        if http.certificate_file is None or http.key_file is None:
            return None
        return cls(http.certificate_file, http.key_file)

    def refresh(self) -> None:
        """Load the files again if they have changed and contain a certificate with its key."""
        now = self._clock()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        versions = self._versions()
        if versions != self._seen and not self._load():
            self._seen = versions

    def _versions(self) -> tuple[float, ...]:
        try:
            return tuple([file.stat().st_mtime for file in self._files])
        except OSError:
            return ()

    def _load(self) -> str:
        """Load the files; return the problem, or "" if they are in use now."""
        certificate, key = self._files
        try:
            # The first context is a trial, because a partial load would leave the context without a matching key.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(certificate, key, password=_no_passphrase)
        except _PassphraseError:
            return f"{key} has a passphrase"
        except OSError as error:
            return error.strerror or str(error)
        return ""


class _PassphraseError(Exception):
    """Raised instead of a passphrase, which OpenSSL would otherwise ask for at the terminal."""


def _no_passphrase() -> str:
    raise _PassphraseError
