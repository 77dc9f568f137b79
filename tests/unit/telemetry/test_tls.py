import os
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from cdcd.config.loading import Config, parse_config
from cdcd.core.errors import ConfigError
from cdcd.telemetry.daemon_pages import serve_http
from cdcd.telemetry.http_client import fetch, status_of
from cdcd.telemetry.state import Telemetry
from cdcd.telemetry.tls import LOOK_S, Tls


def certificate(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    crt, key = folder / "tls.crt", folder / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key),
         "-out", str(crt)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return crt, key


def config(crt: Path, key: Path, port: int = 0) -> Config:
    return parse_config(
        "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\n"
        f"http: {{port: {port}, certificate_file: '{crt}', key_file: '{key}'}}\n",
        {},
    )


def test_the_daemon_is_asked_by_https_and_its_own_certificate_is_trusted(tmp_path: Path):
    given = config(*certificate(tmp_path))
    with serve_http(given, Telemetry("shop")) as address:
        here = config(tmp_path / "tls.crt", tmp_path / "tls.key", int(address.rpartition(":")[2]))
        found = status_of(here)
        assert found is not None
        assert found["pipeline"] == "shop"
        # Another name for the place is another matter: the certificate must have it.
        with pytest.raises(OSError, match="certificate"):
            fetch(f"https://{address}/healthz", given.http.certificate_file, is_own=False)
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch(f"https://{address}/healthz")


def test_a_client_that_stays_in_the_handshake_holds_up_nobody(tmp_path: Path):
    given = config(*certificate(tmp_path))
    with serve_http(given, Telemetry("shop")) as address:
        host, port = address.split(":")
        held = [socket.create_connection((host, int(port))) for _ in range(20)]
        assert fetch(f"https://{address}/healthz", given.http.certificate_file) == '{"alive": true}\n'
        for each in held:
            each.close()


def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(tmp_path: Path):
    crt, key = certificate(tmp_path, "first")
    now = [0.0]
    tls = Tls(crt, key, lambda: now[0])

    def serial() -> str:
        """Of the certificate that a client gets."""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = (
            client.wrap_bio(to_client, to_server),
            tls.context.wrap_bio(to_server, to_client, server_side=True),
        )
        for _ in range(4):
            for end in ends:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        found = ends[0].getpeercert(binary_form=True)
        assert found is not None
        return found.hex()

    first = serial()
    certificate(tmp_path, "second")
    os.utime(crt, (1, 1))
    tls.refresh()
    assert serial() == first
    now[0] += LOOK_S
    tls.refresh()
    second = serial()
    assert second != first
    crt.write_text("not a certificate")
    now[0] += LOOK_S
    tls.refresh()
    assert serial() == second


@pytest.mark.parametrize("broken", ["missing", "garbage", "other key", "passphrase"])
def test_files_that_cannot_be_used_are_an_error_with_a_hint(broken, tmp_path: Path):
    crt, key = certificate(tmp_path)
    if broken == "missing":
        key.unlink()
    elif broken == "garbage":
        crt.write_text("nothing")
    elif broken == "other key":
        (tmp_path / "other").mkdir()
        key = certificate(tmp_path / "other")[1]
    else:
        closed = tmp_path / "closed.key"
        subprocess.run(
            ["openssl", "pkcs8", "-topk8", "-in", str(key), "-out", str(closed), "-passout", "pass:hunter2"],
            check=True,
            capture_output=True,
        )
        key = closed
    with pytest.raises(ConfigError, match=r"certificate_file and http\.key_file cannot be used") as caught:
        Tls(crt, key)
    assert "PEM" in caught.value.hint


def test_a_certificate_without_its_key_is_a_wrong_configuration(tmp_path: Path):
    with pytest.raises(ConfigError, match="http: certificate_file and key_file belong together"):
        parse_config(
            "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\nhttp: {certificate_file: a}\n",
            {},
        )
