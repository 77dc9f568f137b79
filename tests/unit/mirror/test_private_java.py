"""Which modules of the mirror still reach into Java behind Spark's public API. The list may only shrink."""

import re
from pathlib import Path

from deploy.local.cache import REPOSITORY

PRIVATE = re.compile(r"\b(?:_jvm|_jsc|_jdf|_jsparkSession|_gateway|py4j|JavaClass)\b|\bplatform\.java\b")
"""Attributes of PySpark's classes without a promise, its bridge to Java, and what the mirror has built on them."""

LEFT = {
    "platform/java.py",
    "session.py",
    "snapshot/reading.py",
    "targets/delta.py",
    "targets/iceberg.py",
    "targets/iceberg_defaults.py",
    "targets/table_format.py",
}


def test_no_other_module_of_the_mirror_reaches_into_java() -> None:
    mirror = REPOSITORY / "cdcd" / "mirror"
    found = {str(path.relative_to(mirror)) for path in mirror.rglob("*.py") if PRIVATE.search(_code(path))}
    assert found == LEFT, "a module that no longer reaches into Java leaves the list; no module joins it"


def _code(path: Path) -> str:
    """The lines of a module without its comments."""
    return "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
