from pathlib import Path

import pytest

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.config.java_client import librdkafka_login, read_login
from cdcd.config.mirror import SourceConfig, parse_mirror
from cdcd.core.errors import ConfigError

SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="cdcd" password="s3cret";'
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": SCRAM}
SSL = {"security.protocol": "SSL"}


def source(text: str) -> SourceConfig:
    return parse_mirror(f"name: shop\nkafka: {text}\ntarget: {{location: /lake}}\n", {}).kafka


@pytest.mark.parametrize(
    ("java", "ours"),
    [
        ({}, {"security.protocol": "PLAINTEXT"}),
        (
            SASL,
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "cdcd",
                "sasl.password": "s3cret",
            },
        ),
        (
            {**SSL, "ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"},
            {**SSL, "ssl.ca.location": "/ca.pem"},
        ),
        (
            {**SSL, "ssl.keystore.type": "PEM", "ssl.keystore.location": "/me.pem", "ssl.key.password": "k"},
            {
                **SSL,
                "ssl.certificate.location": "/me.pem",
                "ssl.key.location": "/me.pem",
                "ssl.key.password": "k",
            },
        ),
        (
            {
                **SSL,
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": "/me.p12",
                "ssl.keystore.password": "p",
                "ssl.endpoint.identification.algorithm": "",
            },
            {
                **SSL,
                "ssl.keystore.location": "/me.p12",
                "ssl.keystore.password": "p",
                "ssl.endpoint.identification.algorithm": "none",
            },
        ),
        (
            {**SSL, "ssl.truststore.certificates": "CA", "ssl.keystore.certificate.chain": "C"},
            {**SSL, "ssl.ca.pem": "CA", "ssl.certificate.pem": "C"},
        ),
    ],
)
def test_a_login_of_the_java_client_has_the_names_of_librdkafka(java: dict[str, str], ours: dict[str, str]):
    assert librdkafka_login(java) == ours


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism is OAUTHBEARER"),
        ({"sasl.jaas.config": "com.example.Login required x=1;"}, "no login module for PLAIN or SCRAM"),
        ({"sasl.jaas.config": SCRAM.replace(";", " tokenauth=true;")}, "delegation token"),
        ({"sasl.login.callback.handler.class": "software.Handler"}, "names a class of Java"),
        ({"ssl.truststore.location": "/trust.jks"}, "ssl.truststore.type is not PEM"),
        ({"ssl.keystore.location": "/me.jks"}, "neither PEM nor PKCS12"),
    ],
)
def test_a_login_that_librdkafka_cannot_have_names_the_property_and_no_secret(
    more: dict[str, str], said: str
):
    with pytest.raises(ConfigError) as caught:
        librdkafka_login(SASL | more)
    assert said in caught.value.message
    assert "kafka.client_properties" in caught.value.hint
    assert "s3cret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("options", "password"),
    [
        ('username="a" password="quote \\" and \\\\"', 'quote " and \\'),
        ("password='s p' username='a'", "s p"),
        ("username=a password=plain", "plain"),
        ('username="a" password="tab\\t octal \\101"', "tab\t octal A"),
        ('username="a" password=""', ""),
    ],
)
def test_a_login_module_is_read_as_java_reads_it(options: str, password: str):
    module = f"org.apache.kafka.common.security.plain.PlainLoginModule required {options};"
    assert read_login(module) == {"username": "a", "password": password}


@pytest.mark.parametrize("options", ['username="a', "username=a;password=b", "username=a =", "x"])
def test_what_is_no_login_module_is_not_read_in_part(options: str):
    assert read_login(f"org.apache.kafka.common.security.plain.PlainLoginModule required {options};") is None


def test_the_login_of_spark_is_enough_and_one_in_client_properties_takes_its_place(tmp_path: Path):
    file = tmp_path / "jaas"
    file.write_text(SCRAM)
    java = (
        "properties: {security.protocol: SASL_PLAINTEXT, sasl.mechanism: SCRAM-SHA-512}, "
        f"properties_files: {{sasl.jaas.config: {file}}}"
    )
    given = source(f"{{bootstrap_servers: 'b:1', {java}, client_properties: {{client.id: shop}}}}")
    assert given.librdkafka() == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "cdcd",
        "sasl.password": "s3cret",
        "client.id": "shop",
    }
    own = "client_properties: {security.protocol: PLAINTEXT}"
    given = source(f"{{bootstrap_servers: 'b:1', properties: {{security.protocol: SASL_SSL}}, {own}}}")
    assert given.librdkafka() == {"bootstrap.servers": "b:1", "security.protocol": "PLAINTEXT"}


def test_a_property_that_librdkafka_refuses_is_an_error_of_the_configuration():
    with pytest.raises(ConfigError, match="No such configuration property") as caught:
        TopicStarts({"bootstrap.servers": "127.0.0.1:1", "sasl.user": "s3cret"})
    assert "kafka.client_properties" in caught.value.hint
    assert "s3cret" not in caught.value.message
