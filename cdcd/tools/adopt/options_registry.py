"""Options of Confluent's AvroConverter and ProtobufConverter, and of their client of the registry (`registry`).

The names and defaults are those of Confluent Platform 8 (AbstractKafkaSchemaSerDeConfig, AvroDataConfig,
ProtobufDataConfig, SchemaRegistryClientConfig). A connector has them once for keys and once for values. cdcd has one
registry, so that `judging.py` refuses two different ones.
"""

from typing import Final
from urllib.parse import urlsplit, urlunsplit

from cdcd.tools.adopt.verdicts import (
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
    """Rows for keys or values. What is not given has no row of its own: only converters with a registry have these.

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
            f"{at}scrub.invalid.names",
            None,
            by_value(
                {
                    "true": same("Characters that the format has not in names are replaced."),
                    "false": differs(
                        "Names that the format does not take are changed, where the converter refuses them."
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


def avro_options(at: str) -> tuple[Option, ...]:
    """Rows that AvroConverter has beside those of the registry."""
    return (
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
    )


def _protobuf_options(at: str) -> tuple[Option, ...]:
    """Rows that ProtobufConverter has beside those of the registry."""
    return (
        Option(
            f"{at}enhanced.protobuf.schema.support",
            None,
            only(
                "false",
                "Messages have the same names and packages either way.",
                same("Packages are kept: the topic's name is the package."),
            ),
        ),
        Option(
            f"{at}optional.for.nullables",
            None,
            by_value(
                {
                    "true": same("Columns are `optional`, also those of the key."),
                    "false": differs("Columns are always `optional`, so that NULL and 0 are two things."),
                }
            ),
        ),
        Option(
            f"{at}wrapper.for.nullables",
            None,
            only(
                "false",
                "Columns are no wrapper messages.",
                differs(
                    "Columns are `optional`, and not messages such as google.protobuf.Int32Value. Readers must take "
                    "the new schema."
                ),
            ),
        ),
        *(
            Option(f"{at}{name}", None, irrelevant(why))
            for name, why in (
                ("wrapper.for.raw.primitives", "Keys and values are always messages."),
                ("generate.struct.for.nulls", "It is for sinks, which read Protobuf."),
                ("generate.index.for.unions", "Records of tables have no unions."),
                ("flatten.unions", "Records of tables have no unions."),
                ("int.for.enums", "Enums of PostgreSQL are texts in Connect."),
                ("optional.for.proto2", "Schemas are proto3."),
                ("skip.known.types", "What schemas import, the registry knows."),
                ("reference.lookup.only", "Schemas have no references."),
                ("reference.subject.name.strategy", "Schemas have no references."),
            )
        ),
    )


_PARTS: Final = ("key", "value")
_SHARED: Final = tuple([option for part in _PARTS for option in registry_options(part, f"{part}.converter.")])
_AVRO: Final = tuple([option for part in _PARTS for option in avro_options(f"{part}.converter.")])
_PROTOBUF: Final = tuple([option for part in _PARTS for option in _protobuf_options(f"{part}.converter.")])

REGISTRY: Final = (*_SHARED, *_AVRO, *_PROTOBUF)

AVRO_CONVERTER: Final = "io.confluent.connect.avro.avroconverter"
PROTOBUF_CONVERTER: Final = "io.confluent.connect.protobuf.protobufconverter"

_NAMES: Final = frozenset([option.name for option in REGISTRY])
_OF: Final = {
    AVRO_CONVERTER: frozenset([option.name for option in (*_SHARED, *_AVRO)]),
    PROTOBUF_CONVERTER: frozenset([option.name for option in (*_SHARED, *_PROTOBUF)]),
}


def has_registry(converter: str) -> bool:
    """Whether a converter, by the name of its class, has its schemas in a registry."""
    return converter.lower() in _OF


def is_foreign(name: str, converter: str) -> bool:
    """Whether an option is one of converters with a registry, and the connector's converter does not have it."""
    return name in _NAMES and name not in _OF.get(converter.lower(), frozenset())
