"""Options of Kafka Connect for a source connector, and of its producer: converters, transforms, topics, security.

The names and defaults are those of Kafka Connect 4.3 (SourceConnectorConfig), of its converters and transforms, and of
the Java producer, whose properties are librdkafka's here (`kafka.properties`).
"""

from typing import Final

from cdcd.tools.adopt.options_cloudevents import CLOUDEVENTS_CONVERTER, EVENTS, EVENTS_ARE
from cdcd.tools.adopt.options_flattening import FLATTENING_OPTIONS
from cdcd.tools.adopt.options_registry import AVRO_CONVERTER, PROTOBUF_CONVERTER, REGISTRY
from cdcd.tools.adopt.verdicts import (
    Kind,
    Option,
    Rule,
    Verdict,
    always,
    by_value,
    differs,
    if_given,
    impossible,
    irrelevant,
    lacks,
    near,
    number,
    same,
    text,
    to,
)
from cdcd.tools.operations.first_files import name_for

_JSON: Final = "org.apache.kafka.connect.json.jsonconverter"

_AVRO_IS: Final = {
    "key": same("Keys are Avro, with the schema in the registry.", format__key="avro"),
    "value": differs(
        "Values are Avro. Their schemas have three fields more in `source`, and a column is optional unless it is in "
        "the key. The registry judges them as a next version of each subject.",
        format__value="avro",
    ),
}


_PROTOBUF_IS: Final = {
    "key": differs(
        "Keys are Protobuf. The number of a field is that of the column's attribute, and not its place in the key. "
        "Where the two differ, keys have other bytes, and go to other partitions.",
        format__key="protobuf",
    ),
    "value": differs(
        "Values are Protobuf (docs/protobuf.md). Fields of columns have the numbers of their attributes, and are "
        "`optional`. Arrays and maps are messages of their own, so that NULL and empty are two things. Schemas have "
        "three fields more in `source`. The registry judges them as a next version of each subject: give the topics "
        "a new prefix, or set registry.compatibility: NONE for the change.",
        format__value="protobuf",
    ),
}


def _converter(part: str) -> Rule:
    return by_value(
        {
            **({CLOUDEVENTS_CONVERTER: EVENTS_ARE} if part == "value" else {}),
            _JSON: same(f"The {part} is JSON."),
            AVRO_CONVERTER: _AVRO_IS[part],
            PROTOBUF_CONVERTER: _PROTOBUF_IS[part],
            "": differs(
                f"The worker's {part}.converter is not known: give its properties by --worker. cdcd writes JSON "
                "without schemas."
            ),
        },
        lacks(
            f"cdcd writes the {part} as JSON without schemas. Let the consumers read that first, or let a Kafka "
            "Connect or Flink job convert the topics."
        ),
    )


def _pipeline(value: str) -> Verdict:
    name = name_for(value)
    if name == value:
        return to("name")(value)
    return differs(f"The pipeline is called {name}, because names have only a-z, 0-9 and _.", name=name)


def _count(value: str, key: str) -> Verdict:
    if not value.strip():
        return differs(
            f"The connector leaves new topics to the brokers' settings. cdcd makes them with {key}, 1 unless you "
            "set it."
        )
    if number(value) == -1:
        return differs(
            f"-1 is the brokers' default. {key} is a number, 1 unless you set it, and is for new topics only."
        )
    return to(key, number)(value)


CONNECT: Final = (
    Option("name", None, _pipeline),
    Option(
        "connector.class",
        None,
        by_value(
            {
                "io.debezium.connector.postgresql.postgresconnector": same(
                    "It is Debezium's PostgreSQL connector."
                ),
                "postgresconnector": same("It is Debezium's PostgreSQL connector."),
                "postgres": same("It is Debezium's PostgreSQL connector."),
            },
            lacks(
                "cdcd takes over from Debezium's PostgreSQL connector only. Adopt a connector of that class."
            ),
        ),
    ),
    Option("connector.plugin.version", None, irrelevant("It chooses a version of the Java classes.")),
    Option("tasks.max", "1", irrelevant("The connector has one task, whatever this says.")),
    Option("tasks.max.enforce", "true", irrelevant("The connector has one task.")),
    Option("key.converter", "", _converter("key")),
    Option("value.converter", "", _converter("value")),
    Option(
        "key.converter.schemas.enable",
        "true",
        by_value(
            {
                "false": same("Keys are JSON without schemas."),
                "true": same("Keys are JSON with their schema.", format__key="json_schema"),
            }
        ),
    ),
    Option(
        "value.converter.schemas.enable",
        "true",
        by_value(
            {
                "false": same("Values are JSON without schemas."),
                "true": same("Values are JSON with their schema.", format__value="json_schema"),
            }
        ),
    ),
    Option(
        "value.converter.replace.null.with.default",
        "true",
        by_value(
            {
                "false": same("NULL is null."),
                "true": differs(
                    "NULL is null in cdcd's records, also in a column that has a default. JsonConverter writes the "
                    "default in its place."
                ),
            }
        ),
    ),
    *REGISTRY,
    *EVENTS,
    Option("key.converter.*", None, irrelevant("It belongs to key.converter.")),
    Option("value.converter.*", None, irrelevant("It belongs to value.converter.")),
    Option("header.converter", None, irrelevant("cdcd's headers are bytes of text.")),
    Option("header.converter.*", None, irrelevant("It belongs to header.converter.")),
    Option("transforms", None, if_given(same("Each transform is judged at its type."))),
    Option(
        "transforms.<alias>.type",
        None,
        always(differs("The table Transforms says what becomes of each class.")),
    ),
    *FLATTENING_OPTIONS,
    Option("transforms.*", None, irrelevant("It belongs to its transform.")),
    Option("predicates", None, irrelevant("A predicate counts where a transform names it.")),
    Option("predicates.*", None, irrelevant("A predicate counts where a transform names it.")),
    Option(
        "config.action.reload", "restart", irrelevant("cdcd reads files of secrets again at each reconnect.")
    ),
    Option("errors.retry.timeout", "0", irrelevant("It is about converters and transforms.")),
    Option("errors.retry.delay.max.ms", "60000", irrelevant("It is about converters and transforms.")),
    Option(
        "errors.tolerance",
        "none",
        by_value(
            {
                "none": same("cdcd stops rather than skip a record."),
                "all": differs(
                    "cdcd skips no record. kafka.oversized says what becomes of one that is too large."
                ),
            }
        ),
    ),
    Option("errors.log.enable", "false", irrelevant("cdcd logs each error, never with the values of a row.")),
    Option(
        "errors.log.include.messages",
        "false",
        irrelevant("cdcd logs each error, never with the values of a row."),
    ),
    Option(
        "exactly.once.support",
        "requested",
        irrelevant(
            "cdcd delivers exactly once by default (kafka.delivery). Consumers read with "
            "isolation.level=read_committed."
        ),
    ),
    Option("transaction.boundary", "poll", irrelevant("See kafka.transaction.")),
    Option("transaction.boundary.interval.ms", None, irrelevant("See kafka.transaction.")),
    Option("offsets.storage.topic", None, irrelevant("cdcd's position is in topics.checkpoint.")),
    Option(
        "topic.creation.enable",
        "true",
        to("topics.create.enabled", lambda value: value.strip().lower() == "true"),
    ),
    Option(
        "topic.creation.groups",
        None,
        impossible(
            "topics.create is the same for all tables. Create the topics of these groups yourself, before cdcd "
            "needs them."
        ),
    ),
    Option(
        "topic.creation.default.partitions", None, lambda value: _count(value, "topics.create.partitions")
    ),
    Option(
        "topic.creation.default.replication.factor",
        "",
        lambda value: _count(value, "topics.create.replication_factor"),
    ),
    Option(
        "topic.creation.default.*", None, always(same("topics.create.config.")), below="topics.create.config"
    ),
    Option("topic.creation.*", None, irrelevant("It belongs to a group of topic.creation.groups.")),
    *(
        Option(
            name, None, irrelevant("It is an option of sink connectors. A source connector does not read it.")
        )
        for name in ("topics", "topics.regex", "errors.deadletterqueue.*", "consumer.override.*")
    ),
)


_OURS: Final = "cdcd's producer is always idempotent and transactional with acks=all (kafka.delivery)."
_STORES: Final = (
    "librdkafka reads PEM, and no Java key stores. Export it (keytool -exportcert -rfc, openssl pkcs12), and set "
    "ssl.ca.location, ssl.certificate.location and ssl.key.location in kafka.properties."
)


def _property(name: str) -> Rule:
    """librdkafka has the property under the same name, or under `name`."""
    return to(f"kafka.properties.{name}", text)


KERBEROS: Final = (
    "The librdkafka in the wheels of confluent-kafka is built without Kerberos, so it refuses GSSAPI. Build "
    "confluent-kafka from source against a librdkafka with libsasl2 (`pip install --no-binary confluent-kafka "
    "confluent-kafka`), set sasl.kerberos.service.name, sasl.kerberos.principal and sasl.kerberos.keytab in "
    "kafka.properties, and accept this option. Or give cdcd a login by SCRAM, OAUTHBEARER or a client certificate."
)


def _mechanism(value: str) -> Verdict:
    if value.strip().upper() in {"OAUTHBEARER", "AWS_MSK_IAM"}:
        return lacks("Set sasl.mechanism: OAUTHBEARER in kafka.properties, and kafka.oauth (docs/clouds.md).")
    if value.strip().upper() == "GSSAPI":
        return Verdict(Kind.IMPOSSIBLE, KERBEROS, {"kafka.properties.sasl.mechanism": "GSSAPI"})
    return _property("sasl.mechanism")(value)


PRODUCER: Final = (
    Option("bootstrap.servers", None, to("kafka.bootstrap_servers")),
    Option("acks", None, irrelevant(_OURS)),
    Option("enable.idempotence", None, irrelevant(_OURS)),
    Option("transactional.id", None, irrelevant(_OURS)),
    Option("transaction.timeout.ms", None, irrelevant("See kafka.transaction.timeout_s.")),
    Option("retries", None, irrelevant(_OURS)),
    Option("max.in.flight.requests.per.connection", None, irrelevant(_OURS)),
    Option("key.serializer", None, irrelevant("cdcd writes bytes.")),
    Option("value.serializer", None, irrelevant("cdcd writes bytes.")),
    Option("buffer.memory", None, irrelevant("See kafka.queue_bytes_max.")),
    Option("max.block.ms", None, irrelevant("A full queue stops the reading of the stream.")),
    Option(
        "batch.size",
        None,
        near(
            "kafka.properties.batch.size",
            "The same property of librdkafka; cdcd hands whole Kafka transactions over at once.",
        ),
    ),
    Option("linger.ms", None, irrelevant("cdcd hands whole Kafka transactions over at once.")),
    Option("compression.type", None, _property("compression.type")),
    Option(
        "max.request.size",
        None,
        near("kafka.properties.message.max.bytes", "message.max.bytes is librdkafka's name."),
    ),
    Option("delivery.timeout.ms", None, irrelevant("cdcd tries until Kafka answers.")),
    Option(
        "request.timeout.ms",
        None,
        near("kafka.properties.socket.timeout.ms", "socket.timeout.ms is librdkafka's nearest property."),
    ),
    Option("client.id", None, _property("client.id")),
    Option("client.rack", None, _property("client.rack")),
    Option(
        "partitioner.class",
        None,
        if_given(
            lacks(
                "The partitioner is the Java client's default (murmur2). Keys would move to other partitions: wait "
                "until consumers have read all, or create new topics."
            )
        ),
    ),
    Option("interceptor.classes", None, impossible("cdcd loads no Java classes.")),
    Option("security.protocol", None, _property("security.protocol")),
    Option("sasl.mechanism", None, _mechanism),
    Option(
        "sasl.jaas.config",
        None,
        lambda _value: lacks(
            "Set sasl.username and sasl.password in kafka.properties; the password by ${NAME} or "
            "kafka.properties_files."
        ),
        is_secret=True,
    ),
    Option("sasl.kerberos.service.name", None, _property("sasl.kerberos.service.name")),
    Option("sasl.kerberos.kinit.cmd", None, _property("sasl.kerberos.kinit.cmd")),
    Option(
        "sasl.kerberos.min.time.before.relogin",
        None,
        _property("sasl.kerberos.min.time.before.relogin"),
    ),
    Option("sasl.kerberos.ticket.*", None, irrelevant("librdkafka runs kinit at a fixed interval.")),
    Option(
        "sasl.client.callback.handler.class",
        None,
        impossible("cdcd loads no Java classes. Tokens come from kafka.oauth (docs/clouds.md)."),
    ),
    Option(
        "sasl.login.callback.handler.class",
        None,
        impossible("cdcd loads no Java classes. Tokens come from kafka.oauth (docs/clouds.md)."),
    ),
    Option(
        "ssl.endpoint.identification.algorithm",
        "https",
        lambda value: _property("ssl.endpoint.identification.algorithm")(value.strip() or "none"),
    ),
    Option("ssl.truststore.location", None, impossible(_STORES)),
    Option(
        "ssl.truststore.password", None, irrelevant("It belongs to ssl.truststore.location."), is_secret=True
    ),
    Option("ssl.truststore.type", None, irrelevant("It belongs to ssl.truststore.location.")),
    Option("ssl.truststore.certificates", None, _property("ssl.ca.pem")),
    Option("ssl.keystore.location", None, impossible(_STORES)),
    Option("ssl.keystore.password", None, irrelevant("It belongs to ssl.keystore.location."), is_secret=True),
    Option("ssl.keystore.type", None, irrelevant("It belongs to ssl.keystore.location.")),
    Option("ssl.keystore.certificate.chain", None, _property("ssl.certificate.pem")),
    Option("ssl.keystore.key", None, _property("ssl.key.pem"), is_secret=True),
    Option("ssl.key.password", None, _property("ssl.key.password"), is_secret=True),
    Option("ssl.protocol", None, irrelevant("OpenSSL takes the newest that both sides have.")),
    Option("ssl.enabled.protocols", None, irrelevant("OpenSSL takes the newest that both sides have.")),
    Option(
        "ssl.cipher.suites",
        None,
        near(
            "kafka.properties.ssl.cipher.suites", "OpenSSL has other names for ciphers: openssl ciphers -v."
        ),
    ),
    Option("metadata.max.age.ms", None, _property("metadata.max.age.ms")),
    Option("connections.max.idle.ms", None, _property("connections.max.idle.ms")),
    Option("reconnect.backoff.ms", None, _property("reconnect.backoff.ms")),
    Option("reconnect.backoff.max.ms", None, _property("reconnect.backoff.max.ms")),
    Option("retry.backoff.ms", None, irrelevant("See kafka.retry.")),
    Option(
        "send.buffer.bytes",
        None,
        near("kafka.properties.socket.send.buffer.bytes", "socket.send.buffer.bytes is librdkafka's name."),
    ),
    Option(
        "receive.buffer.bytes",
        None,
        near(
            "kafka.properties.socket.receive.buffer.bytes",
            "socket.receive.buffer.bytes is librdkafka's name.",
        ),
    ),
)
"""The Java producer's properties, as they stand behind `producer.override.`, or behind `producer.` for a worker."""
