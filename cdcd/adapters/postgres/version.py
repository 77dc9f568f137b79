"""Which PostgreSQL client is in use."""

import psycopg
from psycopg import pq


def psycopg_version() -> str:
    """The adapter's version and how it reaches libpq: binary, c or python."""
    return f"{psycopg.__version__} ({pq.__impl__})"


def libpq_version() -> str:
    """The library's version; from 10 on, PostgreSQL's major and minor number (PQlibVersion)."""
    number = pq.version()
    return f"{number // 10000}.{number % 10000}"
