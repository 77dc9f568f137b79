"""The memory limit of control groups, in both versions.

How many files and connections a process may have open.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdcd.config.loading import parse_config
from cdcd.core.errors import LimitError
from cdcd.daemon.process import FILES_MIN, exhausted, files_needed, memory_limit, raise_file_limit

MIB = 1 << 20


def written(root: Path, own: str, **limits: str) -> tuple[Path, Path]:
    """The list of this process's groups, and the root of all groups."""
    (root / "own").write_text(own)
    for name, limit in limits.items():
        file = root / name.replace("__", "/").replace("_max", ".max").replace("memory_limit", "memory.limit")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit + "\n")
    return root / "own", root


def test_a_container_sees_its_own_group_at_the_root(tmp_path):
    assert memory_limit(*written(tmp_path, "0::/\n", memory_max=str(512 * MIB))) == 512 * MIB


def test_a_service_has_the_lowest_limit_of_its_groups(tmp_path):
    own, root = written(
        tmp_path,
        "0::/system.slice/cdcd.service\n",
        system__memory_max="max",
        **{
            "system.slice__memory_max": str(300 * MIB),
            "system.slice__cdcd.service__memory_max": str(400 * MIB),
        },
    )
    assert memory_limit(own, root) == 300 * MIB


def test_in_version_1_the_controller_of_memory_counts(tmp_path):
    own, root = written(
        tmp_path,
        "9:cpu:/other\n8:memory:/cdcd\n",
        memory__memory_limit_in_bytes=str(1 << 62),
        memory__cdcd__memory_limit_in_bytes=str(200 * MIB),
        memory__other__memory_limit_in_bytes=str(MIB),
    )
    assert memory_limit(own, root) == 200 * MIB


def test_a_group_that_is_named_as_outside_of_the_container_is_passed_over(tmp_path):
    own, root = written(tmp_path, "0::/../../kubepods/pod7\n", memory_max=str(64 * MIB))
    assert memory_limit(own, root) == 64 * MIB


def test_groups_without_a_limit_have_no_limit(tmp_path):
    assert memory_limit(*written(tmp_path, "0::/\n", memory_max="max")) is None
    assert memory_limit(tmp_path / "missing", tmp_path / "missing") is None


FILE = "name: shop\npostgres: {dsn: host=db}\nkafka: {bootstrap_servers: 'b:1'}\n"


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no further file."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_that_may_open_no_further_file_is_exhausted_until_it_may_again():
    assert exhausted() is None
    with no_more_files():
        assert isinstance(exhausted(), LimitError)
    assert exhausted() is None


@pytest.mark.parametrize(("hard", "refused"), [(FILES_MIN - 1, True), (FILES_MIN, False), (-1, False)])
def test_the_soft_limit_becomes_the_hard_one_which_must_be_enough_for_a_start(
    monkeypatch: pytest.MonkeyPatch, hard: int, refused: bool
):
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    if refused:
        with pytest.raises(LimitError, match=f"{FILES_MIN} at least") as caught:
            raise_file_limit()
        assert "ulimit -n" in caught.value.hint
    else:
        raise_file_limit()
    assert raised == [(hard, hard)]


def test_each_broker_reader_and_page_needs_a_connection():
    plain = parse_config(FILE + "http: {enabled: false}\nsnapshot: {parallelism: 1}\n", {})
    more = parse_config(FILE + "snapshot: {parallelism: 5}\n", {})
    assert files_needed(more, 1) - files_needed(plain, 1) == 4 + 32
    assert files_needed(plain, 3) > files_needed(plain, 1) >= FILES_MIN
