"""How many files and connections a process may have open."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cdcd.config.loading import parse_config
from cdcd.core.errors import LimitError
from cdcd.daemon.file_limit import FILES_MIN, exhausted, files_needed, raise_file_limit

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
