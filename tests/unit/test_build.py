"""What runs is what was meant to run: `make compiled` says so in the environment."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from cdcd.build import is_compiled

ROOT = Path(__file__).resolve().parents[2]
COMPILED = os.environ.get("CDCD_TEST_COMPILED", "")
"""The folder of the compiled tree; empty if the sources run."""


def test_the_source_tree_runs_as_it_is_and_the_compiled_one_compiled():
    assert is_compiled() == bool(COMPILED)


@pytest.mark.skipif(not COMPILED, reason="the source tree is not compiled")
def test_every_module_that_was_compiled_is_loaded_as_such():
    tree = ROOT / COMPILED
    compiled = sorted(tree.glob("cdcd/**/*.so"))
    assert compiled
    for path in compiled:
        name = ".".join(path.relative_to(tree).parts).partition(".cpython")[0]
        assert importlib.import_module(name).__file__ == str(path)


@pytest.mark.skipif(bool(COMPILED), reason="the source tree lies aside")
def test_nothing_compiled_hides_the_sources():
    loaded = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "cdcd"]
    assert [file for file in loaded if file and not file.endswith(".py")] == []
