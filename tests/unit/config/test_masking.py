import pytest

from cdcd.adapters.postgres import connection
from cdcd.config.loading import parse_config
from cdcd.config.masking import SECRET_PARAMETERS, is_secret_name, mask_text, mask_value


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://cdcd:s3cret@db:5432/shop", "postgresql://cdcd:***@db:5432/shop"),
        (
            "postgres://cdcd:s3cret@a,b:5433/shop?sslmode=require",
            "postgres://cdcd:***@a,b:5433/shop?sslmode=require",
        ),
        ("postgresql://:s3cret@db/shop", "postgresql://:***@db/shop"),
        ("postgresql://cdcd:s3/c@re:t@db/shop", "postgresql://cdcd:***@db/shop"),
        ("postgresql://cdcd:s3?cret@db/shop", "postgresql://cdcd:***@db/shop"),
        ("postgresql://cdcd:s3 cret@db/shop", "postgresql://cdcd:***@db/shop"),
        ("postgresql://cdcd@db/shop", "postgresql://cdcd@db/shop"),
        ("postgresql://db:5432/shop", "postgresql://db:5432/shop"),
        (
            "postgresql://db/shop?password=s3cret&sslmode=require",
            "postgresql://db/shop?password=***&sslmode=require",
        ),
        ("postgresql://db/?user=a&sslpassword=s3cret", "postgresql://db/?user=a&sslpassword=***"),
        ("postgresql://db/?oauth_client_secret=s3cret", "postgresql://db/?oauth_client_secret=***"),
        (
            "postgresql://db/?scram_client_key=s3cret&scram_server_key=s3cret&sslkey=/k",
            "postgresql://db/?scram_client_key=***&scram_server_key=***&sslkey=/k",
        ),
        (
            "host=db scram_client_key=s3cret scram_server_key = 's3 cret' dbname=shop",
            "host=db scram_client_key=*** scram_server_key = *** dbname=shop",
        ),
        ("host=db password=s3cret dbname=shop", "host=db password=*** dbname=shop"),
        ("host=db password = 's3 cr\\'et' dbname=shop", "host=db password = *** dbname=shop"),
        ("host=db password='s3 cret", "host=db password=***"),
        ("host=db password=s3\\ cret dbname=shop", "host=db password=*** dbname=shop"),
        ("host=db PASSWORD=s3cret sslpassword=s3cret", "host=db PASSWORD=*** sslpassword=***"),
        ("host=db passfile=/home/cdcd/.pgpass", "host=db passfile=/home/cdcd/.pgpass"),
        (
            'connection to "postgresql://cdcd:s3cret@db/shop" failed',
            'connection to "postgresql://cdcd:***@db/shop" failed',
        ),
        ("http://user:s3cret@proxy:8080/", "http://user:***@proxy:8080/"),
        ("no secret: 10:30, 0/16B3748, a@b.example", "no secret: 10:30, 0/16B3748, a@b.example"),
    ],
)
def test_a_password_is_masked_wherever_it_stands_in_a_text(text, masked):
    assert mask_text(text) == masked
    assert "cret" not in mask_text(text).replace("oauth_client_secret", "").replace("no secret", "")


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "ssl_key",
        "sasl.jaas.config",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "access_token",
        "scram_client_key",
        "scram_server_key",
    ],
)
def test_these_names_hold_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.username",
        "ssl.key.location",
        "ssl.ca.pem",
        "ssl.certificate.pem",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.assertion.algorithm",
        "password_file",
        "security.protocol",
        "key",
        "topic",
    ],
)
def test_these_names_do_not(name):
    assert not is_secret_name(name)


def test_values_are_masked_at_any_depth_and_by_the_name_they_stand_under():
    value = {
        "a": ["host=db password=x", ("password=y", 1)],
        "b": {"sasl.password": "z"},
        "token": None,
        "n": 1,
    }
    assert mask_value(value) == {
        "a": ["host=db password=***", ["password=***", 1]],
        "b": {"sasl.password": "***"},
        "token": None,
        "n": 1,
    }


def test_every_secret_among_libpqs_parameters_is_known_in_both_places():
    from psycopg import pq

    assert SECRET_PARAMETERS == connection.SECRET_PARAMETERS
    defaults = pq.Conninfo.get_defaults()
    starred = {each.keyword.decode() for each in defaults if each.dispchar == b"*"}
    named = {
        each.keyword.decode() for each in defaults if b"key" in each.keyword or b"secret" in each.keyword
    }
    # Files, and what has to do with TCP.
    public = {"sslkey", "sslkeylogfile"} | {name for name in named if name.startswith("keepalives")}
    assert starred | named - public == SECRET_PARAMETERS


def test_arguments_of_commands_that_name_themselves_secret_are_masked():
    config = parse_config(
        "name: shop\nkafka: {bootstrap_servers: 'b:1'}\npostgres: {dsn: host=db, password_command: [vault, kv, get, "
        "-field=password, --token, s3cret, --secret-id=s3cret, 'http://a:s3cret@b', --password, -v]}",
        {},
    )
    shown = config.model_dump()["postgres"]["password_command"]
    assert shown == [
        "vault",
        "kv",
        "get",
        "-field=password",
        "--token",
        "***",
        "--secret-id=***",
        "http://a:***@b",
        "--password",
        "-v",
    ]
