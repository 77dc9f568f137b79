"""No DSN is shown with a part of its password: by `cdcd config`, in a log line, or in an error."""

import json
from random import Random

import pytest
import yaml
from psycopg import pq

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.config.loading import parse_config
from cdcd.config.masking import MASK, mask_text, masked_dsn
from cdcd.config.reference import effective_yaml
from cdcd.core.errors import ConfigError
from tests.dsns import draw, leaked


@pytest.mark.parametrize("seed", range(3))
def test_drawn_dsns_are_shown_without_their_passwords(seed: int):
    random = Random(seed)
    shown = 0
    for _ in range(500):
        dsn, password = draw(random)
        for text in (masked_dsn(dsn), mask_text(dsn)):
            assert not leaked(password, text), (dsn, text)
        shown += masked_dsn(dsn) != MASK
    assert shown > 250


def test_errors_about_drawn_dsns_have_nothing_of_their_passwords():
    random, refused = Random(43), 0
    for _ in range(1000):
        dsn, password = draw(random)
        try:
            parsed = parse_dsn(dsn)
            said = f"{parsed} {parsed!r}"
        except ConfigError as error:
            refused += 1
            said = error.message
        assert not leaked(password, said), dsn
    assert refused > 100


def test_the_effective_configuration_has_nothing_of_drawn_passwords():
    random = Random(44)
    for _ in range(100):
        dsn, password = draw(random)
        data = {"name": "shop", "postgres": {"dsn": dsn}, "kafka": {"bootstrap_servers": "b:1"}}
        try:
            shown = str(yaml.safe_load(effective_yaml(parse_config(json.dumps(data), {})))["postgres"]["dsn"])
        except ConfigError as error:
            shown = error.message
        assert not leaked(password, shown), dsn


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://cdcd:s3cret@db:5432/shop", "postgresql://cdcd:***@db:5432/shop"),
        (
            "postgres://cdcd:it's\"me@a,b:5433/shop?sslmode=require",
            "postgres://cdcd:***@a,b:5433/shop?sslmode=require",
        ),
        ("postgresql://cdcd:x@[::1]:5432/a%20b", "postgresql://cdcd:***@[::1]:5432/a%20b"),
        ("postgresql://db/?p%61ssword=s3cret", "postgresql://db/?password=***"),
        ("postgresql://cdcd%3As3cret@db/shop", "postgresql://***@db/shop"),
        ("postgresql://cdcd:s3cret/shop", "postgresql://cdcd:***/shop"),
        ("postgresql://cdcd:s3/c@re:t@db/shop", "***"),
        ("postgresql://cdcd:s3 cret@db/shop", "***"),
        ("host=db password=it's user=cdcd", "host=db password=*** user=cdcd"),
        (
            "host = db application_name='a b\\'c' password=x",
            "host=db application_name='a b\\'c' password=***",
        ),
        ("host=db options='-c app.key=s3cret'", "host=db options=***"),
        ("host=db dbname=postgresql://a:s3cret@b/c", "host=db dbname=***"),
        ("password=s3cret no equals sign", "***"),
    ],
)
def test_a_dsn_is_shown_in_its_own_form_with_stars_for_its_secrets(dsn: str, shown: str):
    assert masked_dsn(dsn) == shown


def test_what_is_shown_is_what_libpq_reads():
    for dsn in (
        "postgresql://o'b%40x:p@%2Fvar%2Frun:5432,h2:1/a%3Fb?application_name=x%20%26y",
        "host='a b' user=x",
    ):
        before = {each.keyword: each.val for each in pq.Conninfo.parse(dsn.encode()) if each.val}
        after = {each.keyword: each.val for each in pq.Conninfo.parse(masked_dsn(dsn).encode()) if each.val}
        assert after == {
            **before,
            **({b"password": b"***"} if b"password" in before else {}),
            **_hidden(before),
        }


def _hidden(values: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {name: b"***" for name, value in values.items() if name == b"host" and b" " in value}


def test_a_long_line_of_strangers_is_masked_in_no_time():
    for text in (
        "?" * 200_000,
        "a://b:" * 40_000,
        "@" + "a://b:" * 40_000,
        "a." * 100_000,
        "password=" * 20_000,
    ):
        mask_text(text)


def test_yaml_of_what_is_in_effect_can_be_read():
    shown = effective_yaml(
        parse_config(
            "name: shop\npostgres: {dsn: 'postgresql://a:\"b''c@h/d'}\nkafka: {bootstrap_servers: 'b:1'}", {}
        )
    )
    assert yaml.safe_load(shown)["postgres"]["dsn"] == "postgresql://a:***@h/d"
