"""The tokens that requests for snapshots need: one of the configuration, and one of the process.

The token of the process is where only the pipeline's role can read it: in the text of the queries on the connection
that holds the lock (`pg_stat_activity.query`, which PostgreSQL shows to the session's own role, to superusers and to
members of pg_read_all_stats). So `cdcd snapshot` needs no secret but the connection to the database.
"""

import secrets
from typing import Final

from cdcd.config.models import Config
from cdcd.core.snapshot.signals import token_digest

PROCESS_TOKEN: Final = secrets.token_urlsafe(24)
"""Ends with the process. A request that was sent before a takeover is refused by the successor, and asked again."""


def request_tokens(config: Config) -> tuple[str, ...] | None:
    """Digests of the tokens that this process accepts; None: requests need none."""
    if config.snapshot.signals_from == "anybody":
        return None
    given = config.snapshot.signal_token
    tokens = [PROCESS_TOKEN] if given is None else [PROCESS_TOKEN, given.get_secret_value()]
    return tuple([token_digest(token) for token in tokens])
