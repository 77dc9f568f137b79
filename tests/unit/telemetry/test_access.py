"""Who may ask by HTTP: by name, by token, and not across sites."""

import base64

import pytest

from cdcd.config.loading import parse_config
from cdcd.core.errors import ConfigError
from cdcd.telemetry import access
from tests.http_served import ACT, DATA, EVIL, PROBES, READ, serving


def test_addresses_names_of_this_machine_and_of_the_list_are_answered():
    with serving(", hosts: [cdcd.example.com, '*.internal']") as served:
        for host in (
            "127.0.0.1",
            "10.1.2.3:9464",
            "[::1]:9464",
            "[2001:db8::1]",
            "localhost",
            "a.localhost:1",
        ):
            assert served.ask("/v1/status", Host=host)[0] == 200, host
        for host in ("cdcd.example.com", "CDCD.example.com:9464", "a.b.internal", "cdcd.example.com."):
            assert served.ask("/v1/status", Host=host)[0] == 200, host
        assert served.ask("/v1/status", Host="internal")[0] == access.MISDIRECTED
        for path in PROBES:
            assert served.ask(path, Host=EVIL)[0] in {200, 503}


def test_a_request_of_the_servers_own_page_is_followed():
    with serving(f", token: {ACT}") as served:
        host = f"127.0.0.1:{served.server.port}"
        status, _ = served.ask(
            "/v1/pause",
            "POST",
            b"",
            Authorization=f"Bearer {ACT}",
            Origin=f"http://{host}",
            Sec_Fetch_Site="same-origin",
        )
        assert (status, len(served.signals)) == (202, 1)


def test_who_has_the_token_for_reading_reads_and_may_not_act():
    with serving(f", read_token: {READ}, token: {ACT}") as served:
        basic = base64.b64encode(f"any:{READ}".encode()).decode()
        for given in (f"Bearer {READ}", f"bearer {READ}", f"Basic {basic}", f"Bearer {ACT}"):
            for path in DATA:
                assert served.ask(path, Authorization=given)[0] == 200
        for path in PROBES:
            assert served.ask(path)[0] in {200, 503}
        assert served.ask("/v1/pause", "POST", b"", Authorization=f"Bearer {READ}")[0] == 401
        assert not served.signals


def test_the_token_for_reading_is_a_secret_of_the_configuration(tmp_path):
    file = tmp_path / "read"
    file.write_text(f"{READ}\n")
    text = "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\nhttp: {%s}\n"
    config = parse_config(text % f"read_token_file: {file}", {})
    assert config.http.read_token is not None
    assert config.http.read_token.get_secret_value() == READ
    assert READ not in str(config.model_dump())
    with pytest.raises(ConfigError, match=r"http\.read_token: must be 16 to 1000"):
        parse_config(text % "read_token: short", {})
    with pytest.raises(ConfigError, match=r"http\.hosts"):
        parse_config(text % "hosts: ['http://x']", {})


NAMED = "# who may ask\nanna 0f1e2d3c4b5a69788796a5b4c3d2e1f0\n\nairflow  a1b2c3d4e5f60718293a4b5c6d7e8f90\n"


def test_named_tokens_are_secrets_in_a_file(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(NAMED)
    text = "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\nhttp: {%s}\n"
    config = parse_config(text % f"tokens_file: {file}", {})
    assert config.http.action_tokens() == [
        ("anna", b"0f1e2d3c4b5a69788796a5b4c3d2e1f0"),
        ("airflow", b"a1b2c3d4e5f60718293a4b5c6d7e8f90"),
    ]
    assert "0f1e2d3c" not in str(config.model_dump())


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "# nobody",
        "anna",
        "anna short",
        "an/na 0f1e2d3c4b5a69788796a5b4c3d2e1f0",
        "anna 0f1e2d3c4b5a6978 8796a5b4c3d2e1f0",
        "anna 0f1e2d3c4b5a69788796a5b4c3d2e1f0\nanna a1b2c3d4e5f60718293a4b5c6d7e8f90",
        "anna 0f1e2d3c4b5a69788796a5b4c3d2e1f0\nbert 0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    ],
)
def test_lines_that_are_no_named_tokens_are_refused_without_being_shown(tmp_path, lines):
    file = tmp_path / "tokens"
    file.write_text(lines)
    text = "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\nhttp: {%s}\n"
    with pytest.raises(ConfigError, match=r"http\.tokens") as refused:
        parse_config(text % f"tokens_file: {file}", {})
    assert "0f1e2d3c" not in str(refused.value)
