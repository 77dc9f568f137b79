"""Public name of `cdcd.mirror.targets.iceberg`."""

from cdcd.mirror.targets.iceberg import IcebergTarget

__all__ = ["IcebergTarget"]
