"""Processes with different settings of records, and what readers of the log must have been told of each change."""

from random import Random

from cdcd.facts import Fact, RecordSettingChanged
from cdcd.transactions.position import Checkpoint, RecordSettings
from tests.sim.expected import PromiseBrokenError

SETTING = "filters.tables"


class ChangedSettings:
    """Draws what each process has, and compares what the checkpoints say with what was told."""

    def __init__(self, seed: int) -> None:
        # One of its own, so that the numbers of everything else stay as they are.
        self._rng = Random(seed)
        self._read: bytes | None = None
        self._delivered: RecordSettings | None = None
        self._told = False

    def draw(self) -> RecordSettings:
        value = self._rng.choice((0, 0, 1, 2))
        return ((SETTING, value),) if value else ()

    def observe(self, fact: Fact) -> None:
        self._told |= isinstance(fact, RecordSettingChanged) and fact.setting == SETTING

    def look(self, checkpoint: bytes | None) -> None:
        """A checkpoint with other settings than the one before was told of first."""
        if checkpoint is self._read:
            return
        self._read = checkpoint
        found = None if checkpoint is None else Checkpoint.decode(checkpoint, "").settings
        if self._delivered is not None and found not in {None, self._delivered}:
            if not self._told:
                raise PromiseBrokenError(f"from {self._delivered} to {found}, and nothing was told")
            self._told = False
        self._delivered = found
