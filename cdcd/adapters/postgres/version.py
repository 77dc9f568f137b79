"""Versions of the PostgreSQL client libraries."""

import psycopg
from psycopg import pq


def psycopg_version() -> str:
    """Return the version of psycopg and its implementation: binary, c or python."""
    return f"{psycopg.__version__} ({pq.__impl__})"


def libpq_version() -> str:
    """Return the version of libpq: PostgreSQL's major and minor number from 10 on (PQlibVersion)."""
    number = pq.version()
    return f"{number // 10000}.{number % 10000}"
