"""What a task that reads pages raised, as the failure of cdcd that it was.

A task runs in another process, often on another machine. Spark passes its exception on as text only: the traceback
that Python printed there. The type is found again by its full name, because it decides whether the snapshot is taken
again (`TransientError`) or a person must act.
"""

import re
from collections.abc import Iterator
from typing import Final

from cdcd.core.errors import CdcdError, SourceError, TransientError

_RAISED: Final = re.compile(r"\b(cdcd(?:\.\w+)*\.\w+): (.*)")
"""The last line of a printed traceback: the full name of the exception's type, and its message."""


def raised_by_task(table: str, error: Exception) -> Exception:
    """The failure of cdcd that ended the reading of `table`; `error` itself where Spark or Java raised it.

    Args:
        error: what Spark raised in the driver.
    """
    types = {f"{each.__module__}.{each.__qualname__}": each for each in _subclasses(CdcdError)}
    found = [(types[name], text) for name, text in _RAISED.findall(str(error)) if name in types]
    if not found:
        return error
    raised, text = found[-1]
    message, _, hint = text.partition(" Hint: ")
    error_type = TransientError if issubclass(raised, TransientError) else SourceError
    return error_type(f"The snapshot of {table} was not read: {message}", hint=hint)


def _subclasses(error_type: type[CdcdError]) -> Iterator[type[CdcdError]]:
    """`error_type` and all that derive from it, in whatever module."""
    yield error_type
    for each in error_type.__subclasses__():
        yield from _subclasses(each)
