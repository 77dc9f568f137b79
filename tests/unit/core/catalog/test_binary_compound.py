"""Against what a server sends, the forms are tested in tests/integration/test_types.py; here are their edges."""

from struct import pack

import pytest

from cdcd.core.catalog.binary import cube_text, hstore_text
from cdcd.core.catalog.binary_compound import reader_for
from cdcd.core.catalog.binary_text import WithoutReaderError
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES

OIDS = {kind.name: oid for oid, kind in BUILTIN_TYPES.items()}
ADDRESS, SEG, MOOD, SPAN = 70_000, 70_001, 70_002, 70_003


def user_type(
    oid: int, kind: str, *, name: str = "t", element: int = 0, base: int = 0, **more
) -> TypeDescription:
    category = "A" if element else "U"
    return TypeDescription(oid, "public", name, kind, category, element, base, -1, **more)


def value(data: bytes | None) -> bytes:
    return pack("!i", -1) if data is None else pack("!i", len(data)) + data


def composite(*attributes: tuple[int, bytes | None]) -> bytes:
    return pack("!i", len(attributes)) + b"".join([pack("!I", oid) + value(data) for oid, data in attributes])


def array(*elements: bytes | None, bounds: tuple[tuple[int, int], ...] | None = None) -> bytes:
    bounds = ((len(elements), 1),) if bounds is None else bounds
    head = pack("!iiI", len(bounds), 0, 25) + b"".join([pack("!ii", *each) for each in bounds])
    return head + b"".join([value(each) for each in elements])


def read(oid: int, data: bytes, *types: TypeDescription) -> str:
    reader = reader_for(oid, {kind.oid: kind for kind in types})
    assert reader is not None
    return reader(data)


def test_an_array_quotes_what_could_be_something_else():
    words = [b"a", b"", b"NULL", b"nulls", None, b"a b", b"{", b",", b'"', b"\\", b"a;b"]
    text = read(OIDS["_text"], array(*words))
    assert text == r'{a,"","NULL",nulls,NULL,"a b","{",",","\"","\\",a;b}'
    assert read(OIDS["_text"], array(bounds=())) == "{}"
    assert read(OIDS["_text"], array(b"a", b"b", bounds=((2, 0), (1, 1)))) == "[0:1][1:1]={{a},{b}}"


def test_the_delimiter_of_boxes_is_a_semicolon():
    box = pack("!dddd", 3, 4, 1, 2)
    assert read(OIDS["_box"], array(box, box)) == "{(3,4),(1,2);(3,4),(1,2)}"


def test_a_composite_quotes_by_doubling():
    kind = user_type(ADDRESS, "c", parts=(25, 23))
    row = composite((25, b'a "b"\\'), (23, pack("!i", 7)), (25, None), (25, b""), (25, b"("))
    assert read(ADDRESS, row, kind) == r'("a ""b""\\",7,,"","(")'
    assert read(ADDRESS, composite(), kind) == "()"


def test_an_attribute_that_the_catalog_did_not_tell_of_is_read_if_it_is_built_in():
    kind = user_type(ADDRESS, "c", parts=())
    assert read(ADDRESS, composite((16, b"\1")), kind) == "(t)"
    with pytest.raises(WithoutReaderError, match="oid 70009"):
        read(ADDRESS, composite((70_009, b"\1")), kind)


def test_types_are_read_through_each_other():
    address = user_type(ADDRESS, "c", parts=(MOOD, 1007))
    home = user_type(MOOD + 10, "d", base=ADDRESS)
    mood = user_type(MOOD, "e")
    span = user_type(SPAN, "r", parts=(MOOD,))
    spans = user_type(SPAN + 10, "m", parts=(SPAN,))
    homes = user_type(ADDRESS + 10, "b", element=MOOD + 10)
    types = (address, home, mood, span, spans, homes)
    row = composite((MOOD, b"so so"), (1007, array(pack("!i", 1), None)))
    assert read(ADDRESS + 10, array(row, None), *types) == r'{"(\"so so\",\"{1,NULL}\")",NULL}'
    lower, upper = value(b"a"), value(b"b,c")
    assert read(SPAN, b"\2" + lower + upper, *types) == '[a,"b,c")'
    assert read(SPAN, b"\1", *types) == "empty"
    assert read(SPAN, b"\x18", *types) == "(,)"
    assert (
        read(SPAN + 10, pack("!i", 2) + value(b"\1") + value(b"\x0c" + upper), *types) == '{empty,(,"b,c"]}'
    )


def test_vectors_have_blanks_between():
    assert read(OIDS["int2vector"], array(pack("!h", 1), pack("!h", -2), bounds=((2, 0),))) == "1 -2"
    assert read(OIDS["oidvector"], array(bounds=())) == ""


def test_what_extensions_send_is_read():
    assert hstore_text(pack("!i", 2) + value(b'"') + value(None) + value(b"a b") + value(b"\\")) == (
        r'"\""=>NULL, "a b"=>"\\"'
    )
    assert cube_text(pack("!Idd", 1 << 31 | 2, 1, 2.5)) == "(1, 2.5)"
    assert cube_text(pack("!Idd", 1, 1, 2.5)) == "(1),(2.5)"
    assert cube_text(pack("!Idd", 1, -0.0, 0)) == "(-0)"
    assert read(70_005, b"\1a.b", user_type(70_005, "b", name="ltree")) == "a.b"


@pytest.mark.parametrize(
    ("oid", "data"),
    [
        (1007, array(pack("!i", 1)) + b"\0"), (1007, pack("!iiIii", 1, 0, 23, 2**31 - 1, 1)), (1007, b""),
        (1007, pack("!iiIii", 1, 0, 23, -1, 1)), (3904, b""), (3904, b"\0" + value(None)), (3904, b"\1\0"),
        (3904, b"\0" + value(pack("!i", 1))), (4451, pack("!i", 1)), (4451, pack("!i", 1) + value(None)),
        (ADDRESS, pack("!i", 1)), (ADDRESS, composite() + b"\0"), (ADDRESS, composite((23, b"\0"))),
    ],
)  # fmt: skip
def test_what_is_not_of_the_types_form_is_refused(oid, data):
    with pytest.raises(ValueError, match=r".") as caught:
        read(oid, data, user_type(ADDRESS, "c"))
    assert not isinstance(caught.value, WithoutReaderError)
    for broken in (hstore_text, cube_text):
        with pytest.raises(ValueError, match=r"."):
            broken(pack("!i", 5))


@pytest.mark.parametrize(
    "kind",
    [
        user_type(ADDRESS, "c", parts=(25, SEG)),
        user_type(ADDRESS, "c", parts=(OIDS["regclass"],)),
        user_type(ADDRESS, "b", element=SEG),
        user_type(ADDRESS, "b", element=OIDS["aclitem"]),
        user_type(ADDRESS, "b", name="geometry"),
        user_type(ADDRESS, "b", name="ltree", sends=False),
        user_type(ADDRESS, "r", parts=(70_009,)),
        user_type(ADDRESS, "r"),
        user_type(ADDRESS, "d", base=ADDRESS),
    ],
)
def test_there_is_no_reader_where_there_is_none_for_a_part(kind):
    assert reader_for(ADDRESS, {ADDRESS: kind, SEG: user_type(SEG, "b", name="seg", sends=False)}) is None
