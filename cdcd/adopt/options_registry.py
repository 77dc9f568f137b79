"""Options of Confluent's AvroConverter, and of the client of the schema registry in it: `registry` of cdcd.yaml.

The names and defaults are those of Confluent Platform 8 (AbstractKafkaSchemaSerDeConfig, AvroDataConfig,
SchemaRegistryClientConfig). A connector has them once for keys and once for values. cdcd has one registry, so that
`registry_conflicts` in `judging.py` refuses two different ones.
"""

from typing import Final
from urllib.parse import urlsplit, urlunsplit

from cdcd.adopt.verdicts import (
    Option,
    Rule,
    Verdict,
    always,
    boolean,
    by_value,
    differs,
    irrelevant,
    lacks,
    only,
    same,
    to,
)

USER_INFO: Final = "basic.auth.user.info"
"""Ends the name of the option that holds user and password."""

_STRATEGIES: Final = {
    "topicnamestrategy": "topic",
    "recordnamestrategy": "record",
    "topicrecordnamestrategy": "topic_record",
}
_PACKAGE: Final = "io.confluent.kafka.serializers.subject."
_STORES: Final = (
    "cdcd reads PEM, and no Java key stores. Export the certificates (keytool -exportcert -rfc, openssl pkcs12), and "
    "set registry.ca_file, or registry.certificate_file and registry.key_file."
)


def _url(value: str) -> Verdict:
    first, *others = [each.strip() for each in value.split(",")]
    parts = urlsplit(first)
    if parts.username is not None:
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        return lacks(
            "The URL holds a login. Set registry.url without it, registry.user, and registry.password_file.",
            registry__url=bare,
        )
    if others:
        return differs("cdcd asks one registry, the first of these.", registry__url=first)
    return same("registry.url.", registry__url=first)


def _subjects(value: str) -> Verdict:
    name = value.strip().removeprefix(_PACKAGE)
    found = _STRATEGIES.get(name.lower())
    if found is None:
        return lacks("cdcd loads no Java classes. registry.subjects has topic, record and topic_record.")
    return same("registry.subjects.", registry__subjects=found)


def _pem(key: str) -> Rule:
    def rule(value: str) -> Verdict:
        if value.strip().lower().endswith((".pem", ".crt", ".cer")):
            return same(f"{key}.", **{key: value.strip()})
        return lacks(_STORES)

    return rule


def _key_store(value: str) -> Verdict:
    if value.strip().lower().endswith(".pem"):
        keys = {"registry.certificate_file": value.strip(), "registry.key_file": value.strip()}
        return differs("The file must hold certificate and key, without a passphrase.", **keys)
    return lacks(_STORES)


_TLS: Final[tuple[tuple[str, Rule, bool], ...]] = (
    ("truststore.location", _pem("registry.ca_file"), False),
    ("truststore.password", irrelevant("It belongs to the trust store."), True),
    ("truststore.type", irrelevant("It belongs to the trust store."), False),
    ("truststore.certificates", always(lacks("Write them into a file, and set registry.ca_file.")), False),
    ("keystore.location", _key_store, False),
    ("keystore.password", irrelevant("It belongs to the key store."), True),
    ("keystore.type", irrelevant("It belongs to the key store."), False),
    (
        "keystore.certificate.chain",
        always(lacks("Write it into a file, and set registry.certificate_file.")),
        False,
    ),
    ("keystore.key", always(lacks("Write it into a file, and set registry.key_file.")), True),
    (
        "key.password",
        always(lacks("registry.key_file has no passphrase: take it off the key (openssl pkey).")),
        True,
    ),
    (
        "endpoint.identification.algorithm",
        by_value(
            {"https": same("The name of the registry is checked.")},
            differs("cdcd always checks the name of the registry in its certificate."),
        ),
        False,
    ),
)


def registry_options(part: str, at: str) -> tuple[Option, ...]:
    """Rows for keys or values. What is not given has no row of its own: only Avro has these.

    Args:
        at: what the names of the options begin with.
    """
    other = "key" if part == "value" else "value"
    user = always(same("registry.user and registry.password."))
    return (
        Option(f"{at}schema.registry.url", None, _url),
        Option(
            f"{at}basic.auth.credentials.source",
            None,
            by_value(
                {
                    "user_info": same("registry.user and registry.password."),
                    "url": same("The login is in the URL."),
                },
                lacks("Set registry.user and registry.password_file."),
            ),
        ),
        Option(f"{at}{USER_INFO}", None, user, is_secret=True),
        Option(f"{at}schema.registry.{USER_INFO}", None, user, is_secret=True),
        Option(
            f"{at}bearer.auth.credentials.source",
            None,
            only(
                "static_token", "registry.token.", lacks("Set registry.token_command, which prints a token.")
            ),
        ),
        Option(f"{at}bearer.auth.token", None, to("registry.token"), is_secret=True),
        Option(f"{at}{part}.subject.name.strategy", None, _subjects),
        Option(f"{at}{other}.subject.name.strategy", None, irrelevant(f"It is for {other}s.")),
        Option(f"{at}auto.register.schemas", None, to("registry.register_schemas", boolean)),
        Option(
            f"{at}use.latest.version",
            None,
            only(
                "false",
                "Each record has the schema that it was written with.",
                lacks("cdcd writes each record with its own schema, and never with the newest of a subject."),
            ),
        ),
        Option(
            f"{at}connect.meta.data",
            None,
            only("true", "Schemas name Connect's types.", differs("Schemas always name Connect's types.")),
        ),
        Option(
            f"{at}enhanced.avro.schema.support",
            None,
            only("false", "Enums are texts.", differs("Enums are texts, and not Avro's enums.")),
        ),
        Option(
            f"{at}scrub.invalid.names",
            None,
            by_value(
                {
                    "true": same("Characters that Avro has not in names are underscores."),
                    "false": differs(
                        "Names that Avro does not take are changed, where the converter refuses them."
                    ),
                }
            ),
        ),
        *(
            Option(f"{at}{name}", None, irrelevant("It is about the converter's memory."))
            for name in ("schemas.cache.config", "schemas.cache.size", "max.schemas.per.subject")
        ),
        *(Option(f"{at}schema.registry.ssl.{name}", None, rule, secret) for name, rule, secret in _TLS),
    )


REGISTRY: Final = (
    *registry_options("key", "key.converter."),
    *registry_options("value", "value.converter."),
)
