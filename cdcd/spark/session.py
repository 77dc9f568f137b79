"""Public names of `cdcd.mirror.session`."""

from cdcd.mirror.session import catalog_conf, session

__all__ = ["catalog_conf", "session"]
