"""Options of Debezium's PostgreSQL connector about snapshots and signals.

After a takeover, cdcd reads no rows: they are in the topics already. The names and defaults are those of Debezium 3.7.0
and of its manual.
"""

from typing import Final

from cdcd.tools.adopt.verdicts import (
    Option,
    by_value,
    differs,
    if_given,
    impossible,
    irrelevant,
    lacks,
    number,
    only,
    same,
    to,
)

_LATER: Final = "It is about snapshots, and cdcd reads no rows after a takeover. For later ones:"
_INCREMENTAL: Final = (
    "cdcd places rows between transactions by logical messages, and needs no signal table. Ask by `cdcd snapshot "
    "start`."
)
_CUSTOM: Final = "cdcd loads no Java classes."

SNAPSHOT: Final = (
    Option(
        "snapshot.mode",
        "initial",
        by_value(
            {
                "initial": same(
                    "The connector has read the rows, so cdcd reads none.", snapshot__mode="never"
                ),
                "no_data": same("snapshot.mode: never.", snapshot__mode="never"),
                "never": same("snapshot.mode: never.", snapshot__mode="never"),
                "schema_only": same("snapshot.mode: never.", snapshot__mode="never"),
                "when_needed": differs(
                    "snapshot.mode is never, or cdcd would read the rows once more now. Set it to when_needed after "
                    "the first start, so that they are read if the slot is lost.",
                    snapshot__mode="never",
                ),
                "initial_only": lacks(
                    "Such a connector has no slot to take over. snapshot.mode: only reads rows and ends.",
                    snapshot__mode="never",
                ),
                "always": differs(
                    "cdcd does not read the rows at each start. `cdcd snapshot start` reads them when you ask.",
                    snapshot__mode="never",
                ),
                "configuration_based": differs(
                    "cdcd reads no rows after a takeover. `cdcd snapshot start` reads them when you ask.",
                    snapshot__mode="never",
                ),
                "custom": lacks(
                    f"{_CUSTOM} `cdcd snapshot start` reads rows when you ask.", snapshot__mode="never"
                ),
            }
        ),
    ),
    Option(
        "snapshot.mode.custom.name",
        None,
        impossible(f"{_CUSTOM} `cdcd snapshot start` reads rows when you ask."),
    ),
    Option("snapshot.mode.configuration.based.*", None, irrelevant(f"{_LATER} `cdcd snapshot start`.")),
    Option("snapshot.max.threads", "1", to("snapshot.parallelism", number)),
    Option(
        "snapshot.max.threads.multiplier",
        "1",
        irrelevant(f"{_LATER} snapshot.parallelism and snapshot.chunk_bytes."),
    ),
    Option("legacy.snapshot.max.threads", "false", irrelevant(f"{_LATER} snapshot.parallelism.")),
    Option("internal.legacy.snapshot.max.threads", "false", irrelevant(f"{_LATER} snapshot.parallelism.")),
    Option(
        "snapshot.include.collection.list",
        None,
        if_given(differs("snapshot.exclude names the tables that are not read.")),
    ),
    Option(
        "snapshot.select.statement.overrides",
        None,
        impossible("cdcd reads whole tables, or those rows that `cdcd snapshot start --where` names."),
    ),
    Option(
        "snapshot.select.statement.overrides.*",
        None,
        impossible("cdcd reads whole tables, or those rows that `cdcd snapshot start --where` names."),
    ),
    Option(
        "snapshot.query.mode",
        "select_all",
        only("select_all", "cdcd reads all columns.", lacks(_CUSTOM + " cdcd reads all columns.")),
    ),
    Option("snapshot.query.mode.custom.name", None, impossible(f"{_CUSTOM} cdcd reads all columns.")),
    Option("snapshot.locking.mode", "none", irrelevant("cdcd locks no table against writers.")),
    Option(
        "snapshot.locking.mode.custom.name",
        None,
        impossible(f"{_CUSTOM} cdcd locks no table against writers."),
    ),
    Option(
        "snapshot.lock.timeout.ms",
        "10000",
        irrelevant("cdcd waits for a locked table and reads others meanwhile."),
    ),
    Option(
        "snapshot.isolation.mode",
        "serializable",
        irrelevant("cdcd reads at the slot's snapshot, or places rows by watermarks."),
    ),
    Option("snapshot.fetch.size", None, irrelevant(f"{_LATER} snapshot.chunk_bytes.")),
    Option("snapshot.delay.ms", "0", irrelevant(f"{_LATER} `cdcd snapshot start`.")),
    Option(
        "snapshot.tables.order.by.row.count", "disabled", irrelevant("cdcd reads several tables at once.")
    ),
    Option(
        "internal.snapshot.scan.all.columns.force",
        "false",
        irrelevant("cdcd asks for the columns of published tables only."),
    ),
    Option("streaming.delay.ms", "0", irrelevant("cdcd streams as soon as it can.")),
    Option(
        "query.fetch.size",
        "0",
        irrelevant("The stream has no fetch size. kafka.queue_bytes_max bounds the memory."),
    ),
    Option(
        "incremental.snapshot.chunk.size",
        "1024",
        irrelevant("It counts rows; snapshot.chunk_bytes counts bytes."),
    ),
    Option("incremental.snapshot.watermarking.strategy", "INSERT_INSERT", irrelevant(_INCREMENTAL)),
    Option(
        "incremental.snapshot.allow.schema.changes",
        "false",
        irrelevant("cdcd plans a table anew when it changes."),
    ),
    Option("read.only", "false", irrelevant(_INCREMENTAL)),
    Option(
        "signal.data.collection",
        None,
        if_given(differs(f"{_INCREMENTAL} Rows of the signal table are delivered like any other's.")),
    ),
    Option("signal.enabled.channels", "source", irrelevant(_INCREMENTAL)),
    Option("signal.poll.interval.ms", "5000", irrelevant(_INCREMENTAL)),
    Option(
        "signal.kafka.*",
        None,
        impossible(
            "cdcd takes requests by `cdcd snapshot`, SQL or HTTP (POST /v1/snapshots), not from a topic."
        ),
    ),
    Option("signal.consumer.*", None, irrelevant("It belongs to the signal channel kafka.")),
    Option(
        "signal.file",
        None,
        impossible(
            "cdcd takes requests by `cdcd snapshot`, SQL or HTTP (POST /v1/snapshots), not from a file."
        ),
    ),
    Option("signal.emit.failure.max.retries", "0", irrelevant(_INCREMENTAL)),
    Option("signal.emit.failure.backoff.ms", "10000", irrelevant(_INCREMENTAL)),
    Option("internal.signal.synchronous.batch.size", "10", irrelevant(_INCREMENTAL)),
    Option("internal.signal.processor.semaphore.wait.ms", "10000", irrelevant(_INCREMENTAL)),
)
