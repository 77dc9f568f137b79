"""Public name of `cdcd.mirror.targets.delta`."""

from cdcd.mirror.targets.delta import DeltaTarget

__all__ = ["DeltaTarget"]
