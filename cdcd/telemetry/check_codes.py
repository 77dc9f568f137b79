"""Codes of the findings of `cdcd check`: what each check examines, and what `cdcd run` does after an error.

A code is stable, because programs may depend on it. The table is the source of docs/check.md
(`python -m tests.documents`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Side = Literal["This machine", "PostgreSQL", "Kafka", "Schema registry", "Both sides"]


@dataclass(frozen=True, slots=True)
class Code:
    """Meaning of a code.

    Attributes:
        name: `<matter>.<aspect>`.
        meaning: what the check examines, and what a warning or an error means.
        exits: exit codes with which `cdcd run` ends if the finding is an error; () if it is never an error.
    """

    name: str
    side: Side
    meaning: str
    exits: tuple[int, ...] = ()


_TABLE: Final = (
    Code(
        "machine.compiled",
        "This machine",
        "Whether the installed cdcd is compiled. A warning: it is pure Python, and delivers about half as many rows a "
        "second.",
    ),
    Code(
        "machine.memory",
        "This machine",
        "How large a message the memory limit of the control group allows ([sizing](sizing.md)). A warning: the limit "
        "is too small for a message of 1 MiB.",
    ),
    Code(
        "machine.files",
        "This machine",
        "How many files and connections the process may have open ([sizing](sizing.md)). A warning: fewer files than "
        "cdcd needs with this configuration. An error: so few files that no daemon starts; `check` then reports "
        "nothing else.",
        (8,),
    ),
    Code(
        "otlp.library",
        "This machine",
        "Whether the extra that `otlp.endpoint` needs is installed ([OpenTelemetry](opentelemetry.md)).",
        (2,),
    ),
    Code("http.port", "This machine", "Whether cdcd can listen on `http.host` and `http.port`.", (2,)),
    Code(
        "http.certificate",
        "This machine",
        "Whether `http.certificate_file` and `http.key_file` are a certificate with its key.",
        (2,),
    ),
    Code(
        "secret.file",
        "This machine",
        "A file with a secret that other users can read or replace. An error if `security.strict` is set.",
        (2,),
    ),
    Code(
        "secret.weak",
        "This machine",
        "A key or token that can be guessed. An error if `security.strict` is set.",
        (2,),
    ),
    Code(
        "spool.directory",
        "This machine",
        "Whether cdcd can write to `spool.directory`. A warning: its disk has less room than `spool.disk_bytes_max`; "
        "without that limit, less than 1 GiB.",
        (8,),
    ),
    Code(
        "spool.durable",
        "This machine",
        "Whether cdcd can write to `spool.durable_directory`. A warning: its disk has less room than "
        "`spool.durable_bytes_max`.",
        (8,),
    ),
    Code(
        "claim_check.directory",
        "This machine",
        "Whether cdcd can write to `kafka.claim_check_directory`.",
        (8,),
    ),
    Code(
        "claim_check.store",
        "This machine",
        "Whether the extra that `kafka.claim_check_store` needs is installed, and cdcd can put an object below its "
        "`url` ([claim checks](claim-checks.md)).",
        (2, 4, 8),
    ),
    Code("postgres.unreachable", "PostgreSQL", "PostgreSQL does not answer, or is starting or stopping.", (3,)),
    Code(
        "postgres.refused",
        "PostgreSQL",
        "PostgreSQL refuses the connection: role, password, database, pg_hba.conf or certificates.",
        (3,),
    ),
    Code("postgres.setting", "PostgreSQL", "A setting under `postgres` is wrong.", (2,)),
    Code("server.version", "PostgreSQL", "The server's version, and the protocol that follows from it.", (2,)),
    Code("server.standby", "PostgreSQL", "The server is a standby, where cdcd cannot create a slot.", (3,)),
    Code(
        "server.money",
        "PostgreSQL",
        "Number of decimal digits of money, by the database's default of lc_monetary. A warning: the "
        "role or `postgres.dsn` sets another lc_monetary. An error: that setting hides the default.",
        (2,),
    ),
    Code(
        "server.minor",
        "PostgreSQL",
        "A minor version without `restrict_nonsystem_relation_kind` (docs/security.md, What reading a table runs).",
    ),
    Code(
        "server.encoding",
        "PostgreSQL",
        "The encoding of the database, if it is not UTF8, and how cdcd writes texts that are not valid in UTF-8.",
    ),
    Code(
        "server.replication",
        "PostgreSQL",
        "Whether the role can open a replication connection: REPLICATION, pg_hba.conf, a free WAL sender.",
        (3,),
    ),
    Code(
        "server.connections",
        "PostgreSQL",
        "Whether the role and the database allow the connections that cdcd opens (CONNECTION LIMIT).",
        (3,),
    ),
    Code("server.synchronous", "PostgreSQL", "`synchronous_standby_names` would let commits wait for cdcd."),
    Code("server.activities", "PostgreSQL", "`track_activities`, which a second instance of cdcd needs."),
    Code("server.prepared", "PostgreSQL", "`max_prepared_transactions`, for `postgres.two_phase`."),
    Code("server.memory", "PostgreSQL", "Size from which PostgreSQL streams or spills a transaction."),
    Code("wal.level", "PostgreSQL", "`wal_level` must be logical.", (3,)),
    Code("wal.senders", "PostgreSQL", "A free WAL sender (`max_wal_senders`).", (3,)),
    Code("wal.timeout", "PostgreSQL", "`wal_sender_timeout`, after which a silent connection ends."),
    Code("wal.keep", "PostgreSQL", "How much WAL PostgreSQL keeps during an outage, and when it removes the slot."),
    Code("slot.capacity", "PostgreSQL", "A free replication slot (`max_replication_slots`).", (3,)),
    Code("slot.state", "PostgreSQL", "The slot: kind, database, WAL, and what its creation waits for.", (3, 6)),
    Code("slot.active", "PostgreSQL", "Another session reads the slot.", (3,)),
    Code("slot.two_phase", "PostgreSQL", "The slot decodes prepared transactions at PREPARE."),
    Code("slot.idle", "PostgreSQL", "`idle_replication_slot_timeout` would invalidate the slot of a stopped pipeline."),
    Code("slot.failover", "PostgreSQL", "Whether the slot exists on a new primary after a failover "
    "(`postgres.failover`).", (2,)),
    Code(
        "publication.state",
        "PostgreSQL",
        "The publication, or whether the role can create it from `postgres.tables`.",
        (3,),
    ),
    Code(
        "publication.age",
        "PostgreSQL",
        "The publication is missing or younger than the position of the slot. PostgreSQL cannot decode changes that "
        "were written before its creation.",
        (3,),
    ),
    Code("publication.operations", "PostgreSQL", "The publication leaves out inserts, updates, deletes or truncates."),
    Code(
        "publication.tables",
        "PostgreSQL",
        "The publication has other tables than `postgres.tables`, `tables.include` and `tables.exclude` select.",
    ),
    Code(
        "publication.changes",
        "PostgreSQL",
        "`postgres.publication_changes` lets cdcd change the publication, and PostgreSQL would refuse that.",
    ),
    Code(
        "tables.left_out",
        "PostgreSQL",
        "How many of the published tables `tables.include` and `tables.exclude` leave out.",
    ),
    Code(
        "tables.unmatched",
        "PostgreSQL",
        "A pattern of `tables.include` or `tables.exclude` matches no published table.",
    ),
    Code(
        "publication.partitions",
        "PostgreSQL",
        "A partitioned table is published without `publish_via_partition_root`: each partition has a topic of its own.",
    ),
    Code("publication.part", "PostgreSQL", "Tables with a row filter or a column list."),
    Code(
        "format.table",
        "PostgreSQL",
        "Whether each table has records in the chosen format. Two columns that have one name in Avro are an error.",
        (2,),
    ),
    Code(
        "table.identity",
        "PostgreSQL",
        "A published table without a replica identity: PostgreSQL rejects UPDATE and DELETE on it.",
    ),
    Code("table.select", "PostgreSQL", "SELECT on the tables whose rows the next start reads.", (3,)),
    Code(
        "reader.missing",
        "PostgreSQL",
        "A published table whose owner is neither a superuser, cdcd's own role nor in `postgres.trusted_owners`, and "
        "that no reader reads. Its owner can run code as cdcd's role. With `security.strict`, it ends the first start.",
        (2,),
    ),
    Code(
        "reader.connect",
        "PostgreSQL",
        "Whether each role of `postgres.readers` can connect to the pipeline's database.",
        (2, 3),
    ),
    Code(
        "reader.rights",
        "PostgreSQL",
        "Attributes and memberships of a reader that it does not need. An error if `security.strict` is set.",
        (2,),
    ),
    Code(
        "reader.tables",
        "PostgreSQL",
        "A reader that may SELECT from other tables than its own. With `security.strict`, it ends the first start.",
        (2,),
    ),
    Code(
        "reader.shared",
        "PostgreSQL",
        "A reader of tables of several owners that are not trusted. With `security.strict`, it ends the first start.",
        (2,),
    ),
    Code("reader.unmatched", "PostgreSQL", "A reader whose patterns match no published table."),
    Code("table.policy", "PostgreSQL", "Row-level security that hides rows which the next start reads.", (3,)),
    Code(
        "table.key",
        "PostgreSQL",
        "A table without a key whose rows must be read beside the stream, while truncate records are off.",
        (3,),
    ),
    Code(
        "key.columns",
        "PostgreSQL",
        "Whether the keys of `key.columns` are possible: the columns exist, and PostgreSQL sends their former values. "
        "Whether keys can have the form of `key.forms`.",
        (2,),
    ),
    Code(
        "key.partitions",
        "PostgreSQL",
        "A partition does not send the former values that the key of its partitioned table needs.",
        (2,),
    ),
    Code("key.unmatched", "PostgreSQL", "A pattern of `key.columns` or `key.forms` matches no published table."),
    Code("key.repeats", "PostgreSQL", "Several rows of a table may have the same key (`key.columns`)."),
    Code(
        "partitioner.columns",
        "PostgreSQL",
        "Whether the columns of `partitioner.columns` can choose partitions: columns that exist, are not protected, "
        "and whose former values are sent.",
        (2,),
    ),
    Code("partitioner.unmatched", "PostgreSQL", "A pattern of `partitioner.columns` matches no published table."),
    Code(
        "partitioner.moves",
        "PostgreSQL",
        "Records of one key may lie in several partitions, because columns that are not of the key choose them.",
    ),
    Code(
        "fields.rule",
        "PostgreSQL",
        "Whether tables can have the fields that `fields.tables` names: no two fields of a table have one name.",
        (2,),
    ),
    Code(
        "fields.unmatched",
        "PostgreSQL",
        "A pattern of `fields.tables` matches no published table, or no matched table has the column.",
    ),
    Code(
        "columns.rule",
        "PostgreSQL",
        "Whether the rules of `columns` can be followed: one rule for a column, keys that stay apart, and a column for "
        "each rule without a wildcard.",
        (2,),
    ),
    Code("columns.unmatched", "PostgreSQL", "A rule of `columns` matches no column of a published table."),
    Code(
        "outbox.source",
        "PostgreSQL",
        "Whether the tables of `outbox.tables` have the columns that events need, and the server sends messages.",
        (2,),
    ),
    Code(
        "filters.rule",
        "PostgreSQL",
        "Whether the filters of `filters.tables` fit the published tables: columns, types and replica identity.",
        (2,),
    ),
    Code("filters.unmatched", "PostgreSQL", "A filter of `filters.tables` matches no published table."),
    Code(
        "snapshot.query",
        "PostgreSQL",
        "Whether the queries of `snapshot.queries` return the columns of their tables and no others, with their names "
        "and types, and neither write nor lock.",
        (2,),
    ),
    Code("snapshot.query_unmatched", "PostgreSQL", "A name in `snapshot.queries` does not belong to a published "
    "table."),
    Code(
        "routes.rule",
        "PostgreSQL",
        "Whether the rules of `routes.tables` fit the published tables: columns, types and replica identity.",
        (2,),
    ),
    Code("routes.unmatched", "PostgreSQL", "A pattern of `routes.tables` matches no published table."),
    Code("topics.unmatched", "PostgreSQL", "A pattern of `topics.shared` matches no published table."),
    Code(
        "outbox.public",
        "PostgreSQL",
        "Every role that may connect can publish events of the outbox, because every role may write logical messages.",
    ),
    Code(
        "context.source",
        "PostgreSQL",
        "Whether the server sends logical messages, which `context.enabled` needs.",
        (2,),
    ),
    Code(
        "context.public",
        "PostgreSQL",
        "Every role that may connect can choose the context of its transactions, because there is no `context.token`.",
    ),
    Code("outbox.unpublished", "PostgreSQL", "The publication lacks a table of `outbox.tables`."),
    Code(
        "heartbeat.query",
        "PostgreSQL",
        "Whether the server can plan `heartbeat.action_query`, and the role may run it. It is not run.",
    ),
    Code(
        "snapshot.watermark",
        "PostgreSQL",
        "EXECUTE on `pg_logical_emit_message`, which cdcd needs to place rows that it reads beside the stream.",
        (3,),
    ),
    Code(
        "snapshot.signals",
        "PostgreSQL",
        "Which requests for snapshots cdcd accepts, and whether a stranger's condition would run as a superuser.",
    ),
    Code("kafka.unreachable", "Kafka", "Kafka does not answer.", (4,)),
    Code("kafka.refused", "Kafka", "Kafka refuses the connection: user, password, certificates or rights.", (4,)),
    Code("kafka.property", "Kafka", "librdkafka refuses a name or a value in `kafka.properties`.", (2,)),
    Code("kafka.cluster", "Kafka", "Which cluster answers."),
    Code("transaction.timeout", "Kafka", "`transaction.max.timeout.ms` of the brokers.", (4,)),
    Code("transaction.log", "Kafka", "Whether the brokers can keep their log of transactions.", (4,)),
    Code(
        "transaction.id",
        "Kafka",
        "The right to write by the transactional id. A warning if the checkpoint topic of another pipeline names the "
        "same id. An error if the other pipeline has used the id in the last 10 minutes, and this pipeline has never "
        "used it.",
        (4, 7),
    ),
    Code("topic.missing", "Kafka", "A topic that does not exist, and whether the broker would create it.", (4,)),
    Code("topic.replicas", "Kafka", "The topic has fewer replicas than `min.insync.replicas`, so cdcd waits; or too "
    "few to survive the loss of a broker."),
    Code("topic.write", "Kafka", "The right to write to topics that do not exist yet, which Kafka cannot report."),
    Code("topic.rights", "Kafka", "The rights to write to a topic, and to read the checkpoint.", (4,)),
    Code("topic.claimed", "Kafka", "Another pipeline has a topic of a table.", (4,)),
    Code("topic.claims", "Kafka", "The pipeline cannot claim topics, so another pipeline may write to them.", ()),
    Code("topic.leader", "Kafka", "A partition of a topic has no leader.", (4,)),
    Code("topic.checkpoint", "Kafka", "Whether the checkpoint's topic is compacted, has one partition and "
    "belongs to this pipeline.", (4,)),
    Code("topic.compressed", "Kafka", "The daemon reads the topic, and the topic takes compressed records, which "
    "could need much memory."),
    Code("topic.ignored", "Kafka", "Records of the checkpoint's topic that cdcd ignores, because somebody else wrote "
    "them."),
    Code("topic.size", "Kafka", "The topic's record limit is smaller than the producer's."),
    Code("topic.compacted", "Kafka", "The topic is compacted, so values are lost or some records are refused.", (4,)),
    Code(
        "topic.keyless",
        "Kafka",
        "A compacted topic of a table without a key, or one that gets watermarks (`heartbeat.watermark_interval_s`): "
        "the broker refuses records without a key.",
        (4,),
    ),
    Code("topic.markers", "Kafka", "The topic's settings may make Kafka refuse the markers of transactions, so that a "
    "transaction would not end.", (4,)),
    Code("topic.state", "Kafka", "A topic that exists."),
    Code("registry.unreachable", "Schema registry", "The registry does not answer. cdcd waits at a new schema.", (4,)),
    Code("registry.refused", "Schema registry", "The registry refuses the request: user, password, token, rights or "
    "URL are wrong.", (4,)),
    Code("registry.setting", "Schema registry", "A certificate or a program of `registry` that cannot be used.", (2,)),
    Code("registry.mode", "Schema registry", "Whether the registry takes new schemas.", (4,)),
    Code("registry.types", "Schema registry", "Whether the registry takes schemas of AVRO, PROTOBUF or JSON.", (4,)),
    Code("topic.name", "Both sides", "Topics that Kafka cannot distinguish, or whose names Kafka does not allow.",
(4,)),
    Code("position.state", "Both sides", "Whether slot and checkpoint belong together, without a gap.", (6,)),
    Code(
        "records.setting",
        "Both sides",
        "A setting that decides how rows become records has changed since the pipeline ran last.",
    ),
    Code("start.refused", "Both sides", "Another reason why the start fails.", (2, 3, 4, 6)),
)  # fmt: skip

CODES: Final[Mapping[str, Code]] = {code.name: code for code in _TABLE}

_HEAD: Final = """# What `cdcd check` finds

`cdcd check --config FILE` connects to PostgreSQL and to Kafka, changes nothing, and reports each problem with its
fix. It carries out the same checks as the start of `cdcd run`, and never changes what `cdcd run` would change.
Problems come first. The output only counts the findings that are in order; `--all` lists them.
`--format json` gives an object for programs:

    {"exit_code": 10, "findings": [
      {"level": "error", "code": "wal.level", "subject": "wal_level", "found": "replica, and cdcd needs logical",
       "fix": "ALTER SYSTEM …"}]}

| level | meaning |
|---|---|
| error | `cdcd run` would end or wait without end, at its start or at the first affected record. |
| warning | The pipeline works now, and this will cause a problem later. A healthy pipeline has no warnings. |
| unknown | cdcd cannot find this out without changing something. The fix names what is needed. |
| ok | As it should be. |

The exit code is 0 without an error, and 10 with one. If PostgreSQL does not answer, it is 3; if Kafka does not
answer, 4; if a setting is wrong, 2.

Kafka reports a client's rights only for topics that exist. For the right to write to a topic that does not exist yet,
`cdcd check` reads the ACLs. For this, cdcd needs Describe on the cluster and a login by password, because only the
broker knows which principal a certificate or token has. If cdcd cannot read the ACLs, `cdcd check` only tests whether
the topic may be created. The finding `topic.write` then says that the right to write was not checked. The finding
`topic.rights` reports a right that is missing.

To ask for the right on the transactional id, cdcd sends a request with a timeout that no broker allows. The broker
checks the right first, and then refuses the timeout without changing anything. The request is only sent while no
instance of the pipeline is active.

## Codes

A code names the subject of a check, and stays the same in later versions. The last column is the exit code of `cdcd
run`
where the finding is an error.

"""


def markdown() -> str:
    """Return the contents of docs/check.md."""
    parts = [_HEAD, "| code | side | what it is about | exit code |\n|---|---|---|---|\n"]
    parts += [
        f"| `{code.name}` | {code.side} | {code.meaning} | {', '.join(map(str, code.exits))} |\n"
        for code in _TABLE
    ]
    return "".join(parts)
