"""A connector with transforms, and what becomes of it: verdicts, and the configuration as cdcd reads it."""

from typing import Final

from cdcd.config.loading import Config
from cdcd.tools.adopt import settings
from cdcd.tools.adopt.adoption import keys_of
from cdcd.tools.adopt.judging import judge
from cdcd.tools.adopt.reach import Known, KnownTable
from cdcd.tools.adopt.references import References
from cdcd.tools.adopt.verdicts import Verdict

CONNECT: Final = "org.apache.kafka.connect.transforms."
DEBEZIUM: Final = "io.debezium.transforms."
UNWRAP: Final = f"{DEBEZIUM}ExtractNewRecordState"

CONNECTOR: Final = {
    "name": "inventory",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "database.hostname": "db",
    "database.user": "debezium",
    "database.dbname": "inventory",
    "topic.prefix": "inventory",
    "plugin.name": "pgoutput",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}

ORDERS: Final = KnownTable(
    "public", "orders", ("id", "status", "total", "email"), frozenset({"id"}), frozenset({"status", "email"})
)
CUSTOMERS: Final = KnownTable("public", "customers", ("id", "email"), frozenset({"id"}), frozenset({"email"}))
KNOWN: Final = (ORDERS, CUSTOMERS)


def connector(*transforms: dict[str, str], **others: str) -> dict[str, str]:
    """Options of a connector with these transforms, called a, b, c …, in this order. __ stands for a point."""
    options = {**CONNECTOR, **{name.replace("__", "."): value for name, value in others.items()}}
    aliases = "abcdefgh"[: len(transforms)]
    options["transforms"] = ", ".join(aliases)
    for alias, given in zip(aliases, transforms, strict=True):
        options |= {f"transforms.{alias}.{name}": value for name, value in given.items()}
    return options


def topic_predicate(pattern: str) -> dict[str, str]:
    """The predicate `p`, true for records of topics that match."""
    return {
        "predicates__p__type": f"{CONNECT}predicates.TopicNameMatches",
        "predicates__p__pattern": pattern,
    }


def verdicts(options: dict[str, str], known: Known = None) -> dict[str, Verdict]:
    """What becomes of each transform, by alias."""
    return {
        finding.name.split(".")[1]: finding.verdict
        for finding in judge(options, References(), known)
        if finding.name.startswith("transforms.") and finding.name.endswith(".type")
    }


def config(options: dict[str, str], known: Known = None) -> Config:
    """The configuration that is written, as cdcd reads it."""
    references = References()
    keys = keys_of(judge(options, references, known))
    keys["kafka.bootstrap_servers"] = "kafka:9092"
    return settings.checked(settings.nested(keys), references, "f")
