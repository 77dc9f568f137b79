"""Whether PostgreSQL would run `heartbeat.action_query`. `cdcd check` looks, and runs nothing."""

from collections.abc import Iterator

from cdcd.adapters.postgres.connection import Dsn
from cdcd.adapters.postgres.heartbeat_query import HeartbeatQuery
from cdcd.config.loading import Config
from cdcd.core.errors import CdcdError, SourceError
from cdcd.telemetry.findings import Finding

CODE = "heartbeat.query"
SUBJECT = "heartbeat query"


async def check_heartbeat(config: Config, dsn: Dsn) -> Iterator[Finding]:
    """What `cdcd check` says of the query; nothing if there is none.

    Raises:
        TransientError: the server does not answer.
        FatalError: it refuses the connection.
    """
    query = config.heartbeat.action_query
    if query is None:
        return iter(())
    opened = await HeartbeatQuery.open(
        dsn,
        query,
        application_name=f"{config.name} check",
        connect_timeout_s=config.postgres.connect_timeout_s,
        timeout_s=config.heartbeat.action_timeout_s,
    )
    try:
        planned = await opened.plan()
    except SourceError as error:
        return iter((_refused(error),))
    finally:
        opened.close()
    if planned:
        found = Finding("ok", CODE, SUBJECT, "the server plans it, and the role may run it")
    else:
        found = Finding(
            "unknown",
            CODE,
            SUBJECT,
            "the server knows the statement, but has no plan of it; whether the role may run it shows when it runs",
            "Look at the metric cdcd_heartbeat_queries_total, or write the statement as SELECT, INSERT or UPDATE.",
        )
    return iter((found,))


def _refused(error: CdcdError) -> Finding:
    return Finding("warning", CODE, SUBJECT, f"{error.message} The stream goes on without it", error.hint)
