"""The disk under the durable log: what was not synced may be gone after a crash of the machine, in whole or in part."""

import os
from pathlib import Path
from random import Random
from stat import S_ISDIR


class Disk:
    """One folder. `sync` is what the log calls instead of `os.fsync`."""

    def __init__(self, folder: Path, rng: Random) -> None:
        self.folder = folder
        self._rng = rng
        self._sizes: dict[str, int] = {}
        """By name, the bytes that are on disk for good."""
        self._names: set[str] = set()
        """Of the files that are there for good."""

    def sync(self, file: int) -> None:
        status = os.fstat(file)
        if S_ISDIR(status.st_mode):
            self._names = {path.name for path in self.folder.iterdir()}
        else:
            self._sizes[Path(f"/proc/self/fd/{file}").readlink().name] = status.st_size

    def crash(self) -> None:
        """The machine ends. Of what was not synced, nothing is there, or a part, or something else."""
        rng = self._rng
        for path in sorted(self.folder.glob("*.cdcdrec")):
            status = path.stat()
            if path.name not in self._names and rng.random() < 0.5:
                path.unlink()
                continue
            synced = self._sizes.get(path.name, 0)
            lost = status.st_size - synced
            if lost > 0:
                kept = int(rng.random() * (lost + 1))
                os.truncate(path, synced + kept)
                if kept and rng.random() < 0.5:
                    with path.open("r+b") as file:
                        file.seek(synced + int(rng.random() * kept))
                        file.write(bytes([int(rng.random() * 256)]))
