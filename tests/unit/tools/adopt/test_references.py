"""Placeholders stay references, and secrets become some."""

import pytest

from cdcd.tools.adopt.references import References, secret_file


@pytest.mark.parametrize(
    ("value", "reference", "meaning"),
    [
        ("${env:PG_PASSWORD}", "${PG_PASSWORD}", "as the worker's environment variable PG_PASSWORD"),
        (
            "${file:/opt/a.properties:db.password}",
            "${DB_PASSWORD}",
            "db.password of /opt/a.properties, as the provider file gives it to the worker",
        ),
        ("${vault:secret/a:pw}", "${PW}", "pw of secret/a, as the provider vault gives it to the worker"),
    ],
)
def test_a_placeholder_becomes_a_variable(value: str, reference: str, meaning: str) -> None:
    references = References()
    assert references.replace(f"a {value} b") == f"a {reference} b"
    assert references.secret("database.password", value) == reference
    assert references.variables == {reference[2:-1]: meaning}
    assert references.given == {}


def test_two_keys_of_one_name_have_two_variables() -> None:
    references = References()
    assert references.replace("${file:/a:pw}${file:/b:pw}${file:/a:pw}") == "${PW}${PW_2}${PW}"


def test_what_is_no_placeholder_is_escaped() -> None:
    assert References().replace("a ${b} $c") == "a $${b} $c"


def test_a_secret_is_kept_for_this_process_alone() -> None:
    references = References()
    assert references.secret("database.password", "hunter2") == "${DATABASE_PASSWORD}"
    assert references.given == {"DATABASE_PASSWORD": "hunter2"}
    assert "hunter2" not in repr(references)


def test_a_directory_of_secrets_has_a_file_for_each() -> None:
    assert secret_file("${directory:/run/secrets:db}") == "/run/secrets/db"
    assert secret_file("${file:/run/secrets:db}") is None


@pytest.mark.parametrize("key", ["user", "password", "home", "PGUSER", "path", "lc_all"])
def test_a_name_that_the_environment_may_have_gives_way_to_that_of_the_option(key: str) -> None:
    references = References()
    placeholder = f"${{file:/etc/secrets/db.properties:{key}}}"
    assert references.replace(placeholder, "database.user") == "${DATABASE_USER}"
    assert (
        references.secret("database.password", placeholder.replace(key, f"x.{key}"))
        == f"${{X_{key.upper()}}}"
    )
