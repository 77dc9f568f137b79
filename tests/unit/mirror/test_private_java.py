"""The mirror calls Spark's public API alone, so that it runs on every Spark that people have."""

import re

from deploy.local.cache import REPOSITORY

PRIVATE = re.compile(r"\b(?:_jvm|_jsc|_jdf|_jsparkSession|_gateway|[Pp]y4[Jj]\w*|JavaClass)\b")
"""Attributes of PySpark's classes without a promise, and its bridge to Java."""


def test_no_module_of_the_mirror_reaches_into_java() -> None:
    modules = list((REPOSITORY / "cdcd" / "mirror").rglob("*.py"))
    assert modules
    assert [str(path) for path in modules if PRIVATE.search(path.read_text())] == []
