"""From the entries of postgres.readers to DSNs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcd.config.loading import Config, parse_config
from cdcd.config.reference import effective_yaml
from cdcd.core.errors import ConfigError
from cdcd.daemon.reader_settings import readers_of

MAIN = "postgresql://cdcd:main-secret@db.example:5433/shop?sslmode=require"


def config(*readers: dict[str, Any], dsn: str = MAIN) -> Config:
    given = {
        "name": "shop",
        "postgres": {"dsn": dsn, "readers": list(readers)},
        "kafka": {"bootstrap_servers": "127.0.0.1:9092"},
    }
    return parse_config(yaml.safe_dump(given), {})


def test_a_reader_with_a_user_connects_where_the_main_role_does_and_without_its_password():
    readers = readers_of(config({"tables": ["crm.*"], "user": "crm_reader", "password": "p'w d"}))
    dsn = readers.of("crm.people").dsn()
    assert dict(dsn.parameters) == {
        "host": "db.example",
        "port": "5433",
        "dbname": "shop",
        "sslmode": "require",
        "user": "crm_reader",
        "password": "p'w d",
    }
    assert readers.of("shop.orders").dsn().get("user") == "cdcd"


def test_a_reader_without_a_password_never_sends_the_password_of_the_main_role():
    dsn = readers_of(config({"tables": ["crm.*"], "user": "crm_reader"})).of("crm.a").dsn()
    assert dsn.get("password") == ""


def test_the_database_of_a_dsn_without_one_is_named_after_the_main_role():
    readers = readers_of(config({"tables": ["crm.*"], "user": "r"}, dsn="postgresql://cdcd@127.0.0.1"))
    assert readers.of("crm.a").dsn().get("dbname") == "cdcd"


def test_a_reader_may_have_a_dsn_of_its_own():
    own = "host=10.0.0.1 dbname=shop user=reader sslcert=/r.pem"
    access = readers_of(config({"tables": ["crm.*"], "dsn": own, "password": "x"})).of("crm.a")
    assert access.role == "reader"
    assert dict(access.dsn().parameters)["sslcert"] == "/r.pem"
    assert access.dsn().get("password") == "x"


def test_the_file_of_a_password_is_read_at_each_connection(tmp_path: Path):
    file = tmp_path / "password"
    file.write_text("first\n")
    access = readers_of(config({"tables": ["crm.*"], "user": "r", "password_file": str(file)})).of("crm.a")
    assert access.dsn().get("password") == "first"
    file.write_text("second\n")
    assert access.dsn().get("password") == "second"
    file.unlink()
    with pytest.raises(ConfigError, match=r"postgres\.readers\[0\]\.password_file: cannot read"):
        access.dsn()


def test_a_command_prints_the_password_of_its_reader():
    reader = {"tables": ["crm.*"], "user": "r", "password_command": ["token", "--for", "r"]}
    access = readers_of(config(reader)).of("crm.a")
    assert access.dsn().password_command == ("token", "--for", "r")
    assert access.text()[1] == ("token", "--for", "r")


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        ({"tables": ["a.b"]}, "needs either user or dsn"),
        ({"tables": ["a.b"], "user": "r", "dsn": "host=x"}, "needs either user or dsn"),
        ({"tables": ["a.b"], "user": "r", "password": "x", "password_file": "/f"}, "give one of them"),
        ({"tables": [], "user": "r"}, "must not be empty"),
        ({"tables": ["b"], "user": "r"}, "<schema>.<table>"),
        ({"user": "r"}, "is required"),
        ({"tables": ["a.b"], "user": "r", "role": "x"}, "unknown key"),
    ],
)
def test_what_a_reader_lacks_is_told_by_its_place(reader: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=r"postgres\.readers\[0\]") as raised:
        config(reader)
    assert said in str(raised.value)


def test_no_secret_of_a_reader_is_shown():
    own = "postgresql://r:own-secret@127.0.0.1/shop"
    shown = config(
        {"tables": ["a.*"], "user": "r", "password": "given-secret"}, {"tables": ["b.*"], "dsn": own}
    )
    readers = readers_of(shown)
    texts = [effective_yaml(shown), repr(shown), repr(readers.others), str(readers.of("b.t").dsn())]
    for secret in ("given-secret", "own-secret", "main-secret"):
        assert not any(secret in text for text in texts)
    assert "***" in texts[0]
