"""Whether an owner chose an older version of the log, from how its versions became current."""

import pytest

from cdcd.mirror.log.lineage import NO_VERSION, Entry, Lineage


def iceberg(*versions: str) -> Lineage:
    """Versions in the order in which they became current, each at its number in the list.

    A version with a `-` is no ancestor of the current one.
    """
    return Lineage(
        [
            Entry(version.strip("-"), str(at), not version.startswith("-"))
            for at, version in enumerate(versions, 1)
        ]
    )


def delta(last: int, *restores: int, first: int = 0) -> Lineage:
    return Lineage([Entry(str(number), chosen=number in restores) for number in range(first, last + 1)])


@pytest.mark.parametrize(
    ("lineage", "since", "fork"),
    [
        (Lineage(), NO_VERSION, None),
        (iceberg("1", "2", "3"), "1@1", None),
        (iceberg("1", "2", "3"), "3@3", None),
        # Back to the version that was current, with later versions in between.
        (iceberg("1", "2", "-3", "-4", "2"), "2@2", "2"),
        (iceberg("1", "2", "-3", "-4", "2"), "4@4", "2"),
        # Other versions were appended afterwards.
        (iceberg("1", "2", "-3", "2", "5"), "2@2", "2"),
        (iceberg("1", "-2", "1", "5", "6"), "2@2", "1"),
        # That was seen and mended.
        (iceberg("1", "2", "-3", "-4", "2"), "2@5", None),
        (iceberg("1", "-2", "1", "5", "6"), "5@4", None),
        # Two times.
        (iceberg("1", "-2", "-3", "-2", "1", "6"), "2@2", "1"),
        # The table does not remember.
        (iceberg("3", "4"), "2@1", "4"),
        # Nothing was there before.
        (iceberg("3", "4"), NO_VERSION, None),
        (iceberg("1", "-2", "1", "5"), NO_VERSION, "1"),
        (delta(5), "3", None),
        (delta(5, 4), "3", "4"),
        (delta(5, 4), "4", None),
        (delta(9, 4, 7), "3", "7"),
        (delta(9, 4, first=8), "5", "9"),
    ],
)
def test_an_older_version_that_an_owner_chose_is_found(lineage: Lineage, since: str, fork: str | None):
    assert lineage.fork(since) == fork
    if lineage.entries:
        assert lineage.mark.partition("@")[0] == lineage.current == lineage.entries[-1].version
