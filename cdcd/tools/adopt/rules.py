"""Rules of options.yaml whose verdict depends on the value in a way that the file has no word for.

Each function gets the value of the option and the row's `key`. ValueError: Debezium does not take the value.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from cdcd.config.sections.postgres import INTERVAL_S_MAX, INTERVAL_S_MIN
from cdcd.core.records.flattening import read_added
from cdcd.tools.adopt.tables import patterns_of
from cdcd.tools.adopt.verdicts import (
    Verdict,
    VerdictKind,
    differs,
    lacks,
    not_needed,
    number,
    same,
    seconds,
    to,
)
from cdcd.tools.operations.first_files import name_for


def pipeline_name(value: str, _key: str) -> Verdict:
    name = name_for(value)
    if name == value:
        return to("name", value)
    return differs(f"The pipeline is called {name}, because names have only a-z, 0-9 and _.", name=name)


def count_for_topics(value: str, key: str) -> Verdict:
    if not value.strip():
        return differs(
            f"The connector leaves new topics to the brokers' settings. cdcd makes them with {key}, 1 unless you "
            "set it."
        )
    if number(value) == -1:
        return differs(
            f"-1 is the brokers' default. {key} is a number, 1 unless you set it, and applies only to new topics."
        )
    return to(key, number(value))


def queue_bytes(value: str, _key: str) -> Verdict:
    """0 is no limit."""
    if value.strip() == "0":
        return not_needed("It has no limit.")
    return to("kafka.queue_bytes_max", number(value))


def endpoint_identification(value: str, _key: str) -> Verdict:
    """An empty value turns the comparison of names off, which is `none` in librdkafka."""
    return to("kafka.properties.ssl.endpoint.identification.algorithm", value.strip() or "none")


KERBEROS: Final = (
    "The librdkafka in the wheels of confluent-kafka is built without Kerberos, so it refuses GSSAPI. Build "
    "confluent-kafka from source against a librdkafka with libsasl2 (`pip install --no-binary confluent-kafka "
    "confluent-kafka`), set sasl.kerberos.service.name, sasl.kerberos.principal and sasl.kerberos.keytab in "
    "kafka.properties, and accept this option. Or give cdcd a login by SCRAM, OAUTHBEARER or a client certificate."
)


def sasl_mechanism(value: str, _key: str) -> Verdict:
    if value.strip().upper() in {"OAUTHBEARER", "AWS_MSK_IAM"}:
        return lacks("Set sasl.mechanism: OAUTHBEARER in kafka.properties, and kafka.oauth (docs/clouds.md).")
    if value.strip().upper() == "GSSAPI":
        return Verdict(VerdictKind.IMPOSSIBLE, KERBEROS, {"kafka.properties.sasl.mechanism": "GSSAPI"})
    return to("kafka.properties.sasl.mechanism", value)


_OPERATIONS: Final = ("c", "u", "d", "t")


def skipped_operations(value: str, _key: str) -> Verdict:
    """Of the operations that have no records. ValueError: there is no such operation."""
    chosen = {each.strip().lower() for each in value.split(",")} - {"", "none"}
    if chosen - set(_OPERATIONS):
        raise ValueError("must be none, or some of c, u, d and t")
    rows = [each for each in _OPERATIONS if each in chosen and each != "t"]
    keys: dict[str, object] = {"topics.truncate": "t" not in chosen}
    said = f"topics.truncate: {str('t' not in chosen).lower()}."
    if not rows:
        return Verdict(VerdictKind.SAME, said, keys)
    keys["topics.skipped_operations"] = rows
    if "u" in rows:
        # Also in the snapshots that a message asks for.
        keys["snapshot.signals"] = "off"
        said += " snapshot.signals is off, because a snapshot may need the updates."
    return Verdict(VerdictKind.SAME, f"topics.skipped_operations: {', '.join(rows)}; {said}", keys)


_PLAIN: Final = re.compile(r"\w+", re.ASCII)

_DIFFERENT: Final = (
    "key.columns. cdcd refuses a key of which PostgreSQL does not send the former values: set REPLICA IDENTITY FULL or "
    "choose among the columns of the replica identity. `cdcd check` names the tables. Where rows may share a key, they "
    "are read at the slot's exported snapshot only, and cdcd mirror and cdcd verify leave them out."
)


def key_columns(value: str, _key: str) -> Verdict:
    """Debezium's `message.key.columns` as cdcd's `key.columns`.

    The value is a list, parted by semicolons, of `<expression for schema.table>:<column>,<column>…` (`Key.java`,
    CustomKeyMapper).
    """
    if value.strip() in {"", "none"}:
        return Verdict(VerdictKind.SAME, "Nothing is asked for.")
    found: dict[str, list[str]] = {}
    for each in filter(None, map(str.strip, value.split(";"))):
        expression, parts, columns = each.rpartition(":")
        names = [name.strip() for name in columns.split(",")]
        if not parts or not expression or not all(names):
            raise ValueError("must be a list of <schema>.<table>:<column>,<column>, parted by semicolons")
        patterns = patterns_of(expression)
        if patterns is None or not all(map(_PLAIN.fullmatch, names)):
            return Verdict(
                VerdictKind.IMPOSSIBLE,
                f"{each} has a regular expression that no pattern of key.columns can express. Write the tables and the "
                "columns into key.columns.",
            )
        for pattern in patterns:
            if pattern in found:
                return Verdict(
                    VerdictKind.IMPOSSIBLE,
                    f"{pattern} is there twice. Write the columns of the table into key.columns once.",
                )
            found[pattern] = names
    return Verdict(VerdictKind.DIFFERENT, _DIFFERENT, {"key.columns": found})


def heartbeat_interval(value: str, _key: str) -> Verdict:
    given = seconds(value)
    assert isinstance(given, int | float)
    if given <= 0:
        return same("heartbeat.interval_s. With 0 there are no heartbeats.", heartbeat__interval_s=0)
    taken = min(max(given, INTERVAL_S_MIN), INTERVAL_S_MAX)
    why = "heartbeat.interval_s. The header cdcd.watermark of a heartbeat has the LSN."
    if taken != given:
        return differs(f"{why} cdcd uses the nearest interval that it supports.", heartbeat__interval_s=taken)
    return same(why, heartbeat__interval_s=given)


_IDENTITY: Final = re.compile(r"ALTER\s+TABLE\s+(?:ONLY\s+)?\S+\s+REPLICA\s+IDENTITY\s+\w+", re.IGNORECASE)
_TIMEOUT: Final = re.compile(
    r"SET\s+(?:SESSION\s+)?(?:\w+_timeout|application_name|statement_timeout)\s*(?:=|TO)\s*\S+", re.IGNORECASE
)


def initial_statements(value: str, _key: str) -> Verdict:
    """Statements that the connector runs in each of its sessions, with ; between them, and ;; for a ; inside of one."""
    left = [each.strip() for each in value.replace(";;", "\0").split(";") if each.strip()]
    if not left:
        return not_needed("It has no statement.")
    others = [each for each in left if not (_IDENTITY.fullmatch(each) or _TIMEOUT.fullmatch(each))]
    if others:
        return lacks(
            "cdcd fixes the session settings that affect values, and runs no other statement. Give a setting to the "
            "role: ALTER ROLE ... SET ...; and accept this option."
        )
    if any(map(_IDENTITY.fullmatch, left)):
        return differs(
            "The connector has run these statements, and the tables keep their REPLICA IDENTITY. cdcd does not run "
            "them."
        )
    return differs(
        "cdcd has time limits and a name of its own in each session, and does not run these statements."
    )


def heartbeat_query(value: str, _key: str) -> Verdict:
    if not value:
        return same("Nothing is asked for.")
    statement = value.rstrip("; \t\r\n")
    if ";" in statement:
        return lacks(
            "cdcd runs one statement. Put the statements into a function and set heartbeat.action_query to call it, "
            "as SELECT public.beat()."
        )
    return differs(
        "heartbeat.action_query. search_path is empty when it runs, so write tables and functions with their schema. "
        "`cdcd check` shows whether the server accepts the statement.",
        heartbeat__action_query=statement,
    )


def heartbeat_topic(value: str, _key: str) -> Verdict:
    if not value:
        return same("Nothing is asked for.")
    return differs(
        "topics.heartbeat. The topic may also have heartbeats of other connectors; the key of each record names its "
        "connector.",
        topics__heartbeat=value,
    )


_GENERATED: Final = "value,id:generate,type:generate,traceparent:header,dataschemaname:generate"
_OF_HEADERS: Final = (
    "cdcd sets all attributes from the change. Let the outbox write its own events (docs/outbox.md), or accept this "
    "option."
)


def cloudevents_metadata(value: str, _key: str) -> Verdict:
    parts = {each.strip().lower() for each in value.split(",")}
    if "value" in parts and parts <= set(_GENERATED.split(",")):
        return same("cdcd sets the attributes from the change.")
    return lacks(_OF_HEADERS)


def added_fields(value: str, key: str) -> Verdict:
    """Fields or headers that ExtractNewRecordState adds."""
    fields = [each.strip() for each in value.split(",") if each.strip()]
    try:
        for each in fields:
            read_added(each, "")
    except ValueError as error:
        return lacks(
            f"{error}. Remove the field from the connector's option, or accept this option to leave the "
            f"field out."
        )
    return Verdict(VerdictKind.SAME, f"{key}.", {key: fields})


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


def registry_url(value: str, _key: str) -> Verdict:
    first, *others = [each.strip() for each in value.split(",")]
    parts = urlsplit(first)
    if parts.username is not None:
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        return lacks(
            "The URL contains user and password. Set registry.url without them, registry.user, and "
            "registry.password_file.",
            registry__url=bare,
        )
    if others:
        return differs("cdcd uses one registry, the first of the list.", registry__url=first)
    return same("registry.url.", registry__url=first)


def registry_subjects(value: str, _key: str) -> Verdict:
    name = value.strip().removeprefix(_PACKAGE)
    found = _STRATEGIES.get(name.lower())
    if found is None:
        return lacks("cdcd loads no Java classes. registry.subjects has topic, record and topic_record.")
    return same("registry.subjects.", registry__subjects=found)


def registry_pem(value: str, key: str) -> Verdict:
    if value.strip().lower().endswith((".pem", ".crt", ".cer")):
        return same(f"{key}.", **{key: value.strip()})
    return lacks(_STORES)


def registry_key_store(value: str, _key: str) -> Verdict:
    if value.strip().lower().endswith(".pem"):
        keys = {"registry.certificate_file": value.strip(), "registry.key_file": value.strip()}
        return differs("The file must hold certificate and key, without a passphrase.", **keys)
    return lacks(_STORES)


def unavailable_placeholder(value: str, key: str) -> Verdict:
    if not value.strip():
        return differs(
            f"An empty placeholder looks like an empty text. cdcd writes that of {key}, __debezium_unavailable_value, "
            "and the header cdcd.unchanged names the columns."
        )
    return to(key, value)


RULES: Final[Mapping[str, Callable[[str, str], Verdict]]] = {
    rule.__name__: rule
    for rule in (
        pipeline_name,
        unavailable_placeholder,
        count_for_topics,
        queue_bytes,
        endpoint_identification,
        sasl_mechanism,
        skipped_operations,
        key_columns,
        heartbeat_interval,
        heartbeat_query,
        initial_statements,
        heartbeat_topic,
        cloudevents_metadata,
        added_fields,
        registry_url,
        registry_subjects,
        registry_pem,
        registry_key_store,
    )
}
"""The rules by the names that options.yaml has."""
