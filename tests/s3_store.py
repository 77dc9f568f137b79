"""An S3-compatible store: moto's server in a process of its own, behind a proxy that can cut its connections."""

import importlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from deploy.local.process import free_port
from tests.integration.daemon import until
from tests.integration.faults.proxy import CUT, Proxy

CREDENTIALS: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": "somebody",
    "AWS_SECRET_ACCESS_KEY": "hush-5ecret-of-the-store",
    "AWS_REGION": "us-east-1",
}
"""Variables for the processes that use the store."""

_ALWAYS: Final = 1 << 30


class S3Store:
    """Runs while it is entered.

    Attributes:
        url: its address, for `kafka.claim_check_store.endpoint`.
    """

    def __init__(self) -> None:
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._proxy = Proxy(self._port, len)
        self.url = f"http://127.0.0.1:{self._proxy.port}"

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [
                "setpriv",
                "--pdeathsig",
                "KILL",
                "--",
                sys.executable,
                "-m",
                "moto.server",
                "-p",
                str(self._port),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **CREDENTIALS},
        )
        until(self._is_listening, "moto's server does not listen")
        self._proxy.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.close()
        assert self._process is not None, "the store was entered"
        self._process.kill()
        self._process.wait()

    def _is_listening(self) -> bool | None:
        try:
            socket.create_connection(("127.0.0.1", self._port)).close()
        except OSError:
            return None
        return True

    def create_bucket(self, name: str) -> None:
        """Create an empty bucket."""
        url = f"http://127.0.0.1:{self._port}/{name}"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()

    def objects(self, name: str) -> dict[str, bytes]:
        """The objects of a bucket, by key."""
        client = importlib.import_module("obstore.store").S3Store(
            name,
            endpoint=f"http://127.0.0.1:{self._port}",
            client_options={"allow_http": True},
            access_key_id="somebody",
            secret_access_key="secret",
            region="us-east-1",
        )
        keys = [found["path"] for page in client.list() for found in page]
        return {key: bytes(client.get(key).bytes()) for key in keys}

    def claim(self, name: str) -> tuple[str, dict[str, Any]]:
        """Key and value of the only object of a bucket."""
        ((key, value),) = self.objects(name).items()
        return key, json.loads(value)

    def cut(self) -> None:
        """Cut each connection in place of the store's answer from now on; the store itself carries out the request."""
        self._proxy.spoil(lambda _answer: CUT, _ALWAYS)

    def mend(self) -> None:
        """Pass all answers on from now on."""
        self._proxy.spoil(None)

    def cut_at(self, words: bytes, before: Callable[[], None]) -> None:
        """Call `before` at the first answer with these words, and cut the connection in place of the answer."""

        def spoiler(answer: bytes) -> bytes | None:
            if words not in answer:
                return None
            before()
            return CUT

        self._proxy.spoil(spoiler)
