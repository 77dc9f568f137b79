import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.oids import Oids, name_sum


def test_a_list_of_oids_knows_the_names_that_tables_had():
    oids = Oids((7, 3), {7: "a.seven", 3: "a.three"})
    assert oids.oids == (3, 7)
    assert (len(oids), 3 in oids, 4 in oids) == (2, True, False)
    assert (oids.sum_of(7), oids.sum_of(4)) == (name_sum("a.seven"), None)
    assert oids != Oids((7, 3))
    assert oids == Oids((3, 7), {7: "a.seven", 3: "a.three"})
    assert hash(oids) == hash(Oids((7, 3)))


oids = st.lists(st.integers(1, 2**32 - 1), max_size=50)


@given(oids, st.booleans())
def test_a_list_of_oids_is_read_back_as_it_was_written(found: list[int], named: bool):
    names = {oid: f"public.t{oid}" for oid in found} if named else None
    written = Oids(found, names)
    read = Oids.parse(written.text())
    assert read == written
    assert [read.sum_of(oid) for oid in written.oids] == [written.sum_of(oid) for oid in written.oids]


def packed(body: bytes) -> str:
    return base64.b85encode(zlib.compress(body)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "?",
        "AAAA",
        packed(b""),
        packed(b"\0\0\0\1"),
        packed(b"\0\0\0\1\x80"),
        packed(b"\0\0\0\1\5\0"),
        packed(b"\0\0\0\1\5\0\0\0"),
    ],
)
def test_what_is_no_list_of_oids_is_refused(text: str):
    with pytest.raises(ValueError, match=r"list of oids|compressed|base85"):
        Oids.parse(text)
