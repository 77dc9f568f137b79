"""Checks of a publication against earlier deliveries: its partitioned tables, and its age compared with the slot's.

PostgreSQL reads a publication as of each change's position in the WAL (pgoutput.c, LoadPublications). So a
publication that was created after the position of a slot is missing for the changes before its creation. The stream
then fails at every start (13 to 17), or leaves the changes out with a WARNING (18), which cdcd treats as a failure.
"""

from typing import Any, Final

import psycopg

from cdcd.adapters.postgres.answers import answer_of, translated
from cdcd.adapters.postgres.connection import Connection
from cdcd.adapters.postgres.tables import listed
from cdcd.core.errors import SourceError

PEEK_S: Final = 10
"""Seconds that PostgreSQL may decode before `cdcd check` stops examining whether the publication is too young."""

# By partition: a leaf that is published because of a table above it, because of its schema, or by FOR ALL
# TABLES.
_ROOTS: Final = """
SELECT CASE WHEN bool_or(c.relkind = 'p') THEN true
            WHEN bool_or(NOT p.pubviaroot AND c.relispartition AND NOT EXISTS (
                     SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)) THEN false
       END
  FROM ({listed}) AS listed(oid, schema, name) JOIN pg_class c ON c.oid = listed.oid
  JOIN pg_publication p ON p.pubname = %s
"""

# Transaction ids are compared by age. ALTER PUBLICATION ... SET also renews xmin, so a young row proves
# nothing.
_MAY_BE_TOO_YOUNG: Final = """
SELECT age(p.xmin) <= age(s.catalog_xmin)
  FROM pg_publication p, pg_replication_slots s
 WHERE p.pubname = %s AND s.slot_name = %s AND NOT s.active AND s.catalog_xmin IS NOT NULL
"""

_PEEK: Final = """
SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, 1, 'proto_version', '1', 'publication_names', %s)
"""


async def read_roots(connection: Connection, name: str) -> bool | None:
    """Return how the publication publishes partitioned tables.

    True: as a whole; False: by partition; None: it contains no partitioned table.

    Raises TransientError and SourceError.
    """
    with translated(f"reading publication {name}", {"publication": name}):
        # pg_publication_tables is not used, because it waits for locks on published tables.
        query = _ROOTS.format(listed=listed(connection.info.server_version))
        row: Any = await (await connection.execute(query.encode(), (name, name))).fetchone()
    return None if row is None else row[0]


async def find_too_young(connection: Connection, name: str, slot: str) -> SourceError | None:
    """Return the error that `cdcd run` would raise because the publication is younger than the slot's position.

    The slot must be a pgoutput slot of this database. If transaction ids do not settle the question, the first
    change after the slot's position is decoded in a READ ONLY transaction, which changes neither slot nor database.
    A slot that is in use is not examined.

    Returns:
        None: the publication is old enough, or PostgreSQL did not answer within `PEEK_S`.
    """
    with translated(f"reading the age of publication {name}", {"publication": name, "slot": slot}):
        row: Any = await (await connection.execute(_MAY_BE_TOO_YOUNG.encode(), (name, slot))).fetchone()
    if row is None or not row[0]:
        return None
    warned: list[str] = []
    connection.add_notice_handler(lambda notice: warned.append(notice.message_primary or ""))
    try:
        async with connection.transaction():
            await connection.execute(b"SET TRANSACTION READ ONLY")
            await connection.execute(f"SET LOCAL statement_timeout = '{PEEK_S}s'".encode())
            quoted = f'"{name.replace(chr(34), chr(34) * 2)}"'
            await connection.execute(_PEEK.encode(), (slot, quoted))
    except (psycopg.errors.QueryCanceled, psycopg.errors.ObjectInUse):
        return None
    except psycopg.Error as error:
        if error.sqlstate not in ("42704", "55000") or "publication" not in answer_of(error).message:
            return None
        return too_young(name, slot)
    return too_young(name, slot) if any("skipped loading publication" in one for one in warned) else None


def too_young(name: str, slot: str) -> SourceError:
    """Return the error for a publication that was created after the position of the slot."""
    return SourceError(
        f"Publication {name} was created after changes that slot {slot} has still to send. PostgreSQL cannot decode "
        "them, because there was no publication when they were written.",
        hint=TOO_YOUNG_HINT,
    )


TOO_YOUNG_HINT: Final = (
    "Restart the pipeline from scratch: `cdcd reset --yes` removes slot and checkpoint, and the next `cdcd run` reads "
    "the tables again (snapshot.mode). Rows that were deleted meanwhile leave no record."
)
