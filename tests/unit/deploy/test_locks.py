"""The lock files: their form, and that they pin every dependency in pyproject.toml."""

import re
import tomllib
from typing import Final

import pytest

from deploy.local.cache import REPOSITORY
from deploy.locks import LOCKS, additions, entries

TEXTS: Final = {name: (REPOSITORY / name).read_text() for name in LOCKS}
PROGRAMS: Final = "deploy/local/programs.lock"
PROJECT: Final = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())

EXPORTED: Final = """\
click==8.5.1 ; sys_platform == 'darwin' or sys_platform == 'linux' \\
    --hash=sha256:aa
    # via cdcd
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:bb \\
    --hash=sha256:cc
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:dd
"""


def normal(requirement: str) -> str:
    """The name in a requirement, as registries compare names."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def test_the_repository_has_the_lock_files_that_are_written_and_no_other() -> None:
    assert {path.name for path in REPOSITORY.glob("requirements*")} == set(LOCKS)


@pytest.mark.parametrize("name", [*LOCKS, PROGRAMS])
def test_a_lock_file_pins_every_version_with_hashes_and_names_no_address(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    assert "://" not in text
    found = entries(text)
    assert found
    assert all("--hash=sha256:" in entry for entry in found.values())
    lines = [line for line in text.splitlines() if line and line[0] not in "# "]
    assert len([line for line in lines if not line.startswith("-r ")]) == len(found)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_pins_what_pyproject_asks_for(name: str) -> None:
    options = LOCKS[name][0]
    asked = [] if "--only-group" in options else list(PROJECT["project"]["dependencies"])
    for kind, group in zip(options[::2], options[1::2], strict=True):
        table = (
            PROJECT["project"]["optional-dependencies"] if kind == "--extra" else PROJECT["dependency-groups"]
        )
        asked += [one for one in table[group] if isinstance(one, str)]
    pinned = {normal(pin) for text in (TEXTS[name], *all_below(name)) for pin in entries(text)}
    assert {normal(one) for one in asked} <= pinned


def all_below(name: str) -> list[str]:
    return [text for base in LOCKS[name][1] for text in (TEXTS[base], *all_below(base))]


@pytest.mark.parametrize("name", LOCKS)
def test_no_version_is_pinned_twice_on_one_chain_and_no_two_files_disagree(name: str) -> None:
    below = {pin for text in all_below(name) for pin in entries(text)}
    assert not below & set(entries(TEXTS[name]))
    versions = {normal(pin): pin for text in TEXTS.values() for pin in entries(text) if ";" not in pin}
    for pin in entries(TEXTS[name]):
        assert ";" in pin or versions[normal(pin)] == pin


def test_an_addition_is_what_the_included_files_lack() -> None:
    exported = additions(EXPORTED, ["click==8.5.1 \\\n    --hash=sha256:aa\n"])
    assert list(entries(exported)) == [
        "numpy==2.4.6 ; python_full_version < '3.12'",
        "numpy==2.5.5 ; python_full_version >= '3.12'",
    ]
    assert "--hash=sha256:cc" in exported
    # AND a marker that is true on all locked systems is removed.
    assert additions(EXPORTED, []).startswith("click==8.5.1 \\\n    --hash=sha256:aa\n")


def test_users_of_the_wheel_see_the_extras_that_are_for_them() -> None:
    assert set(PROJECT["project"]["optional-dependencies"]) == {"msk", "azure", "otel", "s3", "spark"}
    locked = {group for options, _ in LOCKS.values() for group in options[1::2]}
    assert locked == {*PROJECT["project"]["optional-dependencies"], *PROJECT["dependency-groups"]}
