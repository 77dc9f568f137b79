"""Where the values of claim checks go: files of a directory, or objects of S3-compatible storage.

The rule: `keep` returns only after the value is stored completely, and the record with its address is sent after that.
The name is the SHA-256 of the value. So a value that is stored again replaces a file or an object with the same
contents, and a file or an object that a record names never changes. After a kill in between, the record is encoded
again with a later `ts_ms`, so its value gets another name, and no record names the first one.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal, Protocol

from cdcd.core.errors import CdcdError, ConfigError, LimitError, SinkUnavailableError
from cdcd.extras import library

PROBE: Final = "cdcd-probe"
"""Name, or its beginning, of what is written and removed to check that values can be stored."""

PART_BYTES: Final = 8 << 20
"""Size in bytes of a part of an object. S3 takes parts of at least 5 MiB, and at most 10,000 parts of one object."""

PARTS_AT_ONCE: Final = 2
"""Parts that are sent at the same time. Each one is a copy in memory."""

REQUEST_S: Final = 30
"""Longest time in seconds for one request to a store."""

RETRIES_S: Final = 10
"""Seconds after which a request that failed is not repeated. Then the session ends, and the next one tries again."""


class ClaimStore(Protocol):
    """A place for the values of claim checks. `field` is the name of the address in the record."""

    @property
    def field(self) -> Literal["file", "url"]:
        """The field of the record that has the address."""

    def prove(self) -> None:
        """Check that a value can be stored.

        Raises:
            LimitError: the place refuses it.
            SinkUnavailableError: the store does not answer.
        """

    def keep(self, value: bytes, digest: str) -> str:
        """Store a value, whose SHA-256 is `digest`, and return its address. Raises what `prove` raises."""


@dataclass(frozen=True, slots=True)
class ClaimDirectory:
    """Files of a directory."""

    path: Path

    @property
    def field(self) -> Literal["file", "url"]:
        """See ClaimStore."""
        return "file"

    def prove(self) -> None:
        """Write and remove an empty file."""
        probe = self.path / f"{PROBE}-{os.getpid()}"
        try:
            probe.write_bytes(b"")
        except OSError as error:
            raise LimitError(
                f"Cannot write a claim-check file in {self.path}: {error.strerror}.",
                hint=f"Create the directory {self.path} and let this process's user write to it, or point "
                "kafka.claim_check_directory elsewhere.",
            ) from error
        finally:
            with suppress(OSError):
                probe.unlink()

    def keep(self, value: bytes, digest: str) -> str:
        """Write the value to a file of another name, and rename it when the disk has it."""
        path = self.path / f"{digest}.json"
        part = path.with_suffix(".part")
        try:
            with part.open("wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            directory = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise LimitError(
                f"Cannot write a claim-check file of {len(value)} bytes in {self.path}: {error.strerror}.",
                hint="Free that file system, or point kafka.claim_check_directory elsewhere.",
            ) from error
        return str(path)


_STATUS: Final = re.compile(r"status code: ([345][0-9]{2})\b")
"""Status of an answer in object_store's errors, before the answer's body (client/retry.rs)."""

_REDIRECT: Final = "Received redirect without LOCATION"
"""Words of object_store's error for an answer that names another region, which has no status there."""

_MOVED: Final = 301

_NEED: Final = ("s3", "kafka.claim_check_store needs the library obstore")
"""Extra of the library, and what needs it."""

_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
"""The name of an error in the body of S3's answer."""

_PASSING: Final = frozenset({408, 429})
"""Statuses of the client's errors that pass by themselves: Request Timeout, Too Many Requests."""


class ClaimBucket:
    """Objects of a bucket in S3-compatible storage, by the library obstore.

    Credentials come from the environment (AWS_ACCESS_KEY_ID and others) or from the instance. Errors have the status
    and the code of an answer, but not its text, because that may repeat the credentials.

    Args:
        url: `s3://BUCKET` or `s3://BUCKET/PREFIX`.
        endpoint: address of the store; None: that of the environment, or Amazon's.
        region: None: that of the environment.

    Raises:
        ConfigError: the library is missing, or refuses the settings.
    """

    def __init__(self, url: str, endpoint: str | None = None, region: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._library = library("obstore", *_NEED)
        # Deleting by a list of keys is a request that not every store knows.
        settings = {"endpoint": endpoint, "region": region, "disable_bulk_delete": True}
        try:
            self._store = library("obstore.store", *_NEED).S3Store.from_url(
                self._url,
                config={name: value for name, value in settings.items() if value is not None},
                client_options={
                    "timeout": timedelta(seconds=REQUEST_S),
                    **({"allow_http": True} if (endpoint or "").startswith("http://") else {}),
                },
                retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=RETRIES_S)},
            )
        except Exception as error:  # noqa: BLE001  obstore's errors have no common class, and show credentials
            raise _refused_settings(error) from None

    @property
    def field(self) -> Literal["file", "url"]:
        """See ClaimStore."""
        return "url"

    def prove(self) -> None:
        """Write and remove an empty object. If the store refuses the removal, the empty object stays."""
        self._ask("write to", lambda: self._library.put(self._store, PROBE, b"", use_multipart=False))
        with suppress(Exception):
            self._library.delete(self._store, PROBE)

    def keep(self, value: bytes, digest: str) -> str:
        """Write a large value in parts. An object is visible only after S3 has put its parts together."""
        name = f"{digest}.json"
        limits = {"chunk_size": PART_BYTES, "max_concurrency": PARTS_AT_ONCE}
        self._ask(
            f"write a claim check of {len(value)} bytes to",
            lambda: self._library.put(self._store, name, value, **limits),
        )
        return f"{self._url}/{name}"

    def _ask(self, what: str, call: Callable[[], object]) -> None:
        failure: CdcdError
        try:
            call()
            return
        except Exception as error:  # noqa: BLE001  obstore's errors have no common class
            failure = _failure(error, what, self._url)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            failure = _refused_settings(error)
        # Outside of `except`, so that no traceback shows obstore's words.
        raise failure


def _failure(error: Exception, what: str, url: str) -> CdcdError:
    """Return obstore's exception as cdcd's error, without the words of the store."""
    kind, text = type(error).__name__, str(error)
    found, code = _STATUS.search(text[:2_000]), _CODE.search(text)
    status = int(found[1]) if found else _MOVED if _REDIRECT in text[:2_000] else 0
    reason = ", ".join([kind, *([f"status {status}"] if status else []), *([code[1]] if code else [])])
    if 300 <= status < 500 and status not in _PASSING:
        return LimitError(
            f"Cannot {what} {url}: the store refuses it ({reason}).",
            hint="Create the bucket, let the credentials of this process (AWS_… in its environment, or the role of its "
            "instance) put objects below this URL (s3:PutObject), and check kafka.claim_check_store.region.",
        )
    return SinkUnavailableError(
        f"Cannot {what} {url}: the store does not answer ({reason}).",
        hint="cdcd tries again. Check that kafka.claim_check_store.endpoint can be reached from here, and that "
        "credentials are in the environment or come from the instance.",
    )


def _refused_settings(error: BaseException) -> ConfigError:
    return ConfigError(
        f"kafka.claim_check_store: the library obstore refuses the settings ({type(error).__name__}).",
        hint="Correct url, endpoint and region, and the variables AWS_… of the environment.",
    )
