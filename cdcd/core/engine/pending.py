"""A limit for the part of the checkpoint record that unfinished requests take, because anybody who can write to the
signal table or topic can send any number of them.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.signals import OWN_REQUESTS
from cdcd.core.snapshot.table_task import TableTask

PENDING_BYTES_MAX: Final = 16_384
"""Maximum of bytes in the checkpoint record for all unfinished requests together."""


def excess(progress: Progress, tasks: Iterable[TableTask]) -> str:
    """Return why these tables cannot be added to those that requests already wait for; "" if they can."""
    pending = [task for task in progress.tasks if task.request not in OWN_REQUESTS]
    size = sum(_size(task.name, task.request, task.where) for task in (*pending, *tasks))
    size += sum(_size(each.id) for each in progress.requests if not each.has_ended)
    size += sum(_size(asker) for task in progress.tasks for asker in task.askers if asker != task.request)
    if size <= PENDING_BYTES_MAX:
        return ""
    return f"the requests that wait would take {size} bytes of the checkpoint, and {PENDING_BYTES_MAX} are allowed"


@lru_cache(maxsize=1024)
def _size(name: str, request: str = "", where: str = "") -> int:
    """Return the size in bytes of such an entry in the checkpoint record; cached, because each further request counts
    the waiting ones again.
    """
    return len(json.dumps([name, request, where], ensure_ascii=False).encode()) + 30
