"""Which warnings of the server say that changes are left out, and how a large message is noticed before it is read."""

import math
import mmap

import pytest

from cdcd.adapters.postgres.refusals import Answer
from cdcd.adapters.postgres.replication import MappedMemory, skips_publication

IN_GERMAN = "Laden der Publikation »p« wurde übersprungen"


@pytest.mark.parametrize(
    ("answer", "skips"),
    [
        pytest.param(Answer("55000", IN_GERMAN, function="LoadPublications"), True, id="in any language"),
        pytest.param(Answer("55000", 'skipped loading publication "p"'), True, id="without the function"),
        pytest.param(
            Answer(
                "55000", 'replication slot "s" does not have active_pid', function="StandbySlotsHaveCaughtup"
            ),
            False,
            id="a standby that is waited for",
        ),
        pytest.param(Answer("01000", "something"), False, id="another warning"),
    ],
)
def test_a_publication_is_skipped_if_the_server_says_so_and_not_by_the_sqlstate_alone(
    answer: Answer, skips: bool
):
    assert skips_publication(answer) is skips


def test_memory_is_counted_when_it_is_mapped_and_not_when_it_is_used():
    memory = MappedMemory()
    before = memory.mapped_bytes()
    with mmap.mmap(-1, 64 << 20):
        grown = memory.mapped_bytes() - before
    memory.close()
    memory.close()
    assert grown >= 64 << 20
    assert memory.mapped_bytes() == 0


@pytest.mark.parametrize(("now", "counts"), [(0.0, True), (math.inf, False)])
def test_growth_counts_from_the_last_look_until_that_is_too_old(now: float, counts: bool):
    memory = MappedMemory()
    memory.growth_bytes()
    with mmap.mmap(-1, 64 << 20):
        memory.begin(now)
        assert (memory.growth_bytes() >= 64 << 20) == counts
    memory.close()
