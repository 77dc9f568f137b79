"""The temporary folder of a tool that starts servers."""

import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(name: str = "chaos") -> Iterator[Path]:
    """A new folder that is deleted in the end. The server's unprivileged user may walk through it.

    SIGTERM ends the block as Ctrl-C does, so that servers and folder do not outlive a tool that is stopped.
    """
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix=f"cdcd-{name}-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
