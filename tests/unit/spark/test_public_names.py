"""`cdcd.spark` gives the names of `cdcd.mirror`, and nothing else."""

import ast
from pathlib import Path

import pytest

CDCD = Path(__file__).resolve().parents[3] / "cdcd"
PUBLIC = sorted((CDCD / "spark").rglob("*.py"))


def given(path: Path) -> list[tuple[str, str]]:
    """The modules and names that a public module imports from the mirror."""
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return [
        (node.module, alias.name)
        for node in found
        if node.module and node.module.startswith("cdcd.mirror.")
        for alias in node.names
    ]


def names_in(module: str) -> set[str]:
    tree = ast.parse(CDCD.parent.joinpath(*module.split(".")).with_suffix(".py").read_text())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                found |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return found


@pytest.mark.parametrize("path", PUBLIC, ids=lambda path: str(path.relative_to(CDCD)))
def test_every_public_name_is_defined_in_the_mirror(path: Path):
    names = given(path)
    assert names or path.parent.name == "targets"
    assert [(module, name) for module, name in names if name not in names_in(module)] == []


def test_the_documented_modules_are_public():
    modules = {str(path.relative_to(CDCD / "spark").with_suffix("")) for path in PUBLIC}
    assert {"api", "jars", "kafka", "session", "targets/iceberg", "targets/delta"} <= modules
