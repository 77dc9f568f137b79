"""Options of Debezium's PostgreSQL connector about the database: connection, slot, publication, tables, running.

The names and defaults are those of Debezium 3.7.0 (PostgresConnectorConfig, RelationalDatabaseConnectorConfig and
CommonConnectorConfig) and of its manual. Options about tables and columns are judged together, in `tables.py`.
"""

from typing import Final

from cdcd.tools.adopt.options_heartbeat import HEARTBEAT
from cdcd.tools.adopt.verdicts import (
    Option,
    always,
    boolean,
    by_value,
    differs,
    if_given,
    impossible,
    irrelevant,
    lacks,
    near,
    not_needed,
    number,
    only,
    same,
    seconds,
    to,
)

_CUSTOM: Final = "cdcd loads no Java classes."
_BY_TABLES: Final = always(
    same("postgres.tables and the publication; compared with the database's own tables.")
)
"""Their verdict is that of `tables.py`, which takes them all together."""
_RETRY: Final = "cdcd reconnects for as long as it runs, with back-off (postgres.retry)."

CONNECTION: Final = (
    Option("database.hostname", None, to("dsn.host")),
    Option("database.port", "5432", to("dsn.port")),
    Option("database.user", None, to("dsn.user")),
    Option("database.password", None, to("postgres.password"), is_secret=True),
    Option("database.dbname", None, to("dsn.dbname")),
    Option("database.sslmode", "prefer", to("dsn.sslmode")),
    Option("database.sslcert", None, to("dsn.sslcert")),
    Option(
        "database.sslkey",
        None,
        near(
            "dsn.sslkey",
            "JDBC takes a key in DER, and libpq one in PEM. Convert it: openssl pkcs8 -inform DER -in KEY -out "
            "KEY.pem, and name the new file.",
        ),
    ),
    Option("database.sslpassword", None, to("dsn.sslpassword"), is_secret=True),
    Option("database.sslrootcert", None, to("dsn.sslrootcert")),
    Option(
        "database.sslfactory",
        None,
        by_value(
            {
                "": same("Nothing is asked for."),
                "org.postgresql.ssl.nonvalidatingfactory": differs(
                    "libpq encrypts without looking at the certificate with sslmode=require.",
                    dsn__sslmode="require",
                ),
            },
            lacks(f"{_CUSTOM} Set sslmode and sslrootcert in postgres.dsn."),
        ),
    ),
    Option("database.tcpKeepAlive", "true", irrelevant("cdcd's connections always have TCP keepalive.")),
    Option(
        "database.initial.statements",
        None,
        impossible(
            "cdcd pins the session settings that shape values, and runs no other statement. Give a setting to the "
            "role: ALTER ROLE ... SET ...;"
        ),
    ),
    Option("database.query.timeout.ms", "600000", irrelevant("cdcd gives each of its queries a time limit.")),
    Option("database.connection.factory.class", None, impossible(f"{_CUSTOM} libpq opens connections.")),
    Option("connection.validation.timeout.ms", "60000", irrelevant("See postgres.connect_timeout_s.")),
    Option(
        "driver.*", None, impossible("JDBC's driver is not there. libpq's parameters go into postgres.dsn.")
    ),
)

_NEW_SLOT: Final = (
    "Change the connector to plugin.name=pgoutput with a new slot.name first, or start cdcd with a slot and a snapshot "
    "of its own."
)

SLOT: Final = (
    Option(
        "plugin.name",
        "decoderbufs",
        by_value(
            {
                "pgoutput": same("cdcd always reads pgoutput."),
                "decoderbufs": lacks(f"A slot of decoderbufs can be read by that plugin only. {_NEW_SLOT}"),
                **dict.fromkeys(
                    ("wal2json", "wal2json_streaming", "wal2json_rds", "wal2json_rds_streaming"),
                    lacks(
                        "Debezium removed wal2json in 2.0. Its slot can be read by that plugin only, and cannot be "
                        f"taken over. {_NEW_SLOT}"
                    ),
                ),
            }
        ),
    ),
    Option("slot.name", "debezium", to("postgres.slot")),
    Option("slot.failover", "false", to("postgres.failover", boolean)),
    Option(
        "slot.drop.on.stop",
        "false",
        by_value(
            {
                "false": same("cdcd never drops a slot when it stops."),
                "true": lacks(
                    "The connector would drop the slot when it stops, and all that follows would be lost. Set it to "
                    "false, and let the connector restart, before it is stopped."
                ),
            }
        ),
    ),
    Option(
        "slot.stream.params",
        None,
        impossible("Parameters of pgoutput are postgres.protocol, streaming, messages, origin and binary."),
    ),
    Option("slot.max.retries", "6", irrelevant(_RETRY)),
    Option("slot.retry.delay.ms", "10000", irrelevant(_RETRY)),
    Option("status.update.interval.ms", "10000", to("postgres.status_interval_s", seconds)),
    Option(
        "xmin.fetch.interval.ms",
        "0",
        only("0", "source.xmin is null.", differs("source.xmin is always null.")),
    ),
    Option(
        "lsn.flush.mode",
        None,
        by_value(
            {
                "": same("cdcd confirms what Kafka has."),
                "connector": same("cdcd confirms what Kafka has."),
                "connector_and_driver": same(
                    "cdcd confirms what Kafka has, and keepalives with nothing to deliver."
                ),
                "manual": differs(
                    "cdcd confirms what Kafka has, by itself. Stop what confirms the slot now."
                ),
            }
        ),
    ),
    Option(
        "flush.lsn.source",
        "true",
        by_value(
            {
                "true": same("cdcd confirms what Kafka has."),
                "false": differs("cdcd confirms what Kafka has, by itself. Stop what confirms the slot now."),
            }
        ),
    ),
    Option("lsn.flush.timeout.ms", "30000", irrelevant("cdcd's status updates wait for nothing.")),
    Option("lsn.flush.timeout.action", "fail", irrelevant("cdcd's status updates wait for nothing.")),
    Option(
        "offset.mismatch.strategy",
        "no_validation",
        irrelevant(
            "cdcd compares checkpoint and slot at each start, and stops if they do not belong together."
        ),
    ),
    Option(
        "internal.log.position.check.enable",
        "true",
        irrelevant("cdcd always looks whether the slot has the WAL."),
    ),
    Option("internal.slot.seek.to.known.offset.on.start", None, irrelevant("cdcd starts where the slot is.")),
)

PUBLICATION: Final = (
    Option("publication.name", "dbz_publication", to("postgres.publication")),
    Option(
        "publication.autocreate.mode",
        "all_tables",
        by_value(
            {
                "all_tables": same(
                    "A publication that exists is used; else cdcd creates one for all tables."
                ),
                "filtered": same(
                    "A publication that exists is used; else cdcd creates one for postgres.tables."
                ),
                "disabled": same("A publication that exists is used."),
                "no_tables": same("A publication that exists is used."),
            }
        ),
    ),
    Option(
        "publish.via.partition.root",
        "false",
        irrelevant("A publication that exists stays as it is. Look at it: \\dRp+"),
    ),
    Option(
        "replica.identity.autoset.values",
        None,
        impossible(
            "cdcd changes no table. What the connector has set stays; for a new table: ALTER TABLE ... REPLICA "
            "IDENTITY ...;"
        ),
    ),
    Option("table.include.list", None, _BY_TABLES),
    Option("table.exclude.list", None, _BY_TABLES),
    Option("schema.include.list", None, _BY_TABLES),
    Option("schema.exclude.list", None, _BY_TABLES),
    Option("database.include.list", None, irrelevant("A slot belongs to one database.")),
    Option("database.exclude.list", None, irrelevant("A slot belongs to one database.")),
    Option(
        "table.ignore.builtin",
        "true",
        only(
            "true",
            "System tables are in no publication.",
            lacks("System tables are in no publication: read them by queries."),
        ),
    ),
    Option(
        "column.include.list",
        None,
        if_given(
            differs(
                "columns.include. If a column with a matching name is added later, cdcd leaves it out until "
                "columns.include is changed. The list must have all columns of keys, and a column of each table. Both "
                "are checked with the database."
            )
        ),
    ),
    Option(
        "column.exclude.list",
        None,
        if_given(
            same("columns.exclude. Columns of a key are impossible: which these are, the database says.")
        ),
    ),
    Option(
        "skip.messages.without.change",
        "false",
        only(
            "false", "Each change is delivered.", differs("cdcd delivers updates that change nothing, too.")
        ),
    ),
    Option(
        "message.prefix.include.list",
        None,
        if_given(
            differs("cdcd delivers logical messages of every prefix; postgres.messages: asked delivers none.")
        ),
    ),
    Option(
        "message.prefix.exclude.list",
        None,
        if_given(
            differs("cdcd delivers logical messages of every prefix; postgres.messages: asked delivers none.")
        ),
    ),
    Option(
        "guardrail.collections.max", "0", irrelevant("cdcd's memory does not grow with the number of tables.")
    ),
    Option(
        "guardrail.collections.limit.action",
        "warn",
        irrelevant("cdcd's memory does not grow with the number of tables."),
    ),
)

RUNNING: Final = (
    *HEARTBEAT,
    Option(
        "max.batch.size",
        "2048",
        irrelevant(
            "It counts records of a poll. kafka.transaction.records_max and bytes_max bound a Kafka transaction."
        ),
    ),
    Option("max.queue.size", "8192", irrelevant("It counts records. kafka.queue_bytes_max counts bytes.")),
    Option(
        "max.queue.size.in.bytes",
        "0",
        lambda value: (
            not_needed("It has no limit.")
            if value.strip() == "0"
            else to("kafka.queue_bytes_max", number)(value)
        ),
    ),
    Option("poll.interval.ms", "500", irrelevant("cdcd does not poll.")),
    Option("poll.dispatch.interval.ms", None, irrelevant("cdcd does not poll.")),
    Option("errors.max.retries", "-1", only("-1", _RETRY, differs(_RETRY))),
    Option("retriable.restart.connector.wait.ms", "10000", irrelevant(_RETRY)),
    Option("executor.shutdown.timeout.ms", "4000", irrelevant("See shutdown_timeout_s.")),
    Option(
        "event.processing.failure.handling.mode",
        "fail",
        only(
            "fail",
            "cdcd stops rather than skip an event.",
            differs("cdcd stops at an event that it cannot read, and never skips one."),
        ),
    ),
    Option(
        "event.converting.failure.handling.mode",
        "warn",
        only(
            "fail",
            "cdcd stops rather than leave a value out.",
            not_needed("cdcd has a form for every value, and stops rather than leave one out."),
        ),
    ),
    Option(
        "schema.refresh.mode", "columns_diff", irrelevant("cdcd goes by the relation messages of the stream.")
    ),
    Option(
        "memory.management.schemas.class", None, irrelevant("It is about the memory of the Java process.")
    ),
    Option("memory.management.tables.class", None, irrelevant("It is about the memory of the Java process.")),
    Option(
        "notification.enabled.channels",
        None,
        impossible(
            "cdcd tells of snapshots in its log (docs/events.md), `cdcd snapshot status` and the topic's markers."
        ),
    ),
    Option("notification.*", None, irrelevant("It belongs to notification.enabled.channels.")),
    Option(
        "statistics.metrics.enabled",
        "true",
        irrelevant("cdcd has Prometheus metrics at /metrics (docs/metrics.md)."),
    ),
    Option(
        "custom.metric.tags",
        None,
        if_given(
            differs("Metrics have no tags of your own; Prometheus adds labels by its target's configuration.")
        ),
    ),
    Option(
        "internal.advanced.metrics.enable", "false", irrelevant("cdcd has Prometheus metrics at /metrics.")
    ),
    Option(
        "internal.offset.activity.monitor.interval.ms",
        "600000",
        irrelevant("Events and metrics tell of outages and of the WAL that is kept."),
    ),
    Option("custom.sanitize.pattern", None, irrelevant("cdcd never shows secrets.")),
    Option(
        "openlineage.integration.enabled",
        "false",
        only(
            "false",
            "There is no OpenLineage.",
            lacks("cdcd tells OpenLineage nothing. Declare the lineage by other means."),
        ),
    ),
    Option("openlineage.integration.*", None, irrelevant("It belongs to openlineage.integration.enabled.")),
)
