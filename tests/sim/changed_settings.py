"""Processes with different settings of records, and what readers of the log must have been told of each change."""

from random import Random

from cdcd.core.engine.checkpoint import Checkpoint, RecordSettings
from cdcd.core.engine.record_settings import ROOTS
from cdcd.core.facts import Fact
from cdcd.core.facts.start import RecordSettingChanged
from tests.sim.expected import PromiseBrokenError

SETTING = "filters.tables"

ROOTS_EVERY = 16
"""One of so many worlds has partitioned tables."""


class ChangedSettings:
    """Draws what each process has, and compares what the checkpoints say with what was told."""

    def __init__(self, seed: int) -> None:
        # One of its own, so that the numbers of everything else stay as they are.
        self._rng = Random(seed)
        self._read: bytes | None = None
        self._delivered: RecordSettings | None = None
        self._told = False
        self._roots_rng = Random(seed)
        self._has_roots = seed % ROOTS_EVERY == ROOTS_EVERY - 1
        self._roots: int | None = None

    def draw(self) -> RecordSettings:
        value = self._rng.choice((0, 0, 1, 2))
        return ((SETTING, value),) if value else ()

    def draw_roots(self) -> bool | None:
        """How partitioned tables are published while a session starts; None: there is none.

        Somebody alters the publication now and then, and restores it.
        """
        return self._roots_rng.choice((None, True, True, False)) if self._has_roots else None

    def observe(self, fact: Fact) -> None:
        self._told |= isinstance(fact, RecordSettingChanged) and fact.setting == SETTING

    def look(self, checkpoint: bytes | None) -> None:
        """A checkpoint with other settings than the one before was told of first."""
        if checkpoint is self._read:
            return
        self._read = checkpoint
        if checkpoint is None:
            # A first start that came to nothing took its checkpoint back. It delivered nothing, so the next is free.
            self._roots = None
        settings = None if checkpoint is None else Checkpoint.decode(checkpoint, "").settings
        found = None if settings is None else tuple([one for one in settings if one[0] != ROOTS])
        self._look_at_roots(settings)
        if self._delivered is not None and found not in {None, self._delivered}:
            if not self._told:
                raise PromiseBrokenError(f"from {self._delivered} to {found}, and nothing was told")
            self._told = False
        self._delivered = found

    def _look_at_roots(self, settings: RecordSettings | None) -> None:
        """No simulated start accepts a gap: so what a checkpoint says of partitioned tables stays as it is."""
        roots = dict(settings or ()).get(ROOTS)
        if self._roots is not None and settings is not None and roots != self._roots:
            raise PromiseBrokenError(
                f"partitioned tables changed their topics: from {self._roots} to {roots}"
            )
        self._roots = roots if roots is not None else self._roots
