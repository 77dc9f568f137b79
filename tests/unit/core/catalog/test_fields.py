import pytest

from cdcd.core.catalog.fields import Fields


def test_fields_are_read_one_after_the_other():
    fields = Fields(
        b"\xff\xfe\xff\xfe" + b"\0\0\0\2ab" + b"\xff\xff\xff\xff" + b"gr\xc3\xb6\xc3\x9fe\0" + b"rest"
    )
    assert (fields.integer(2), fields.unsigned(2)) == (-2, 65534)
    assert (fields.value(), fields.value()) == (b"ab", None)
    assert fields.string().encode("latin-1").decode() == "größe"
    assert fields.rest() == b"rest"
    fields.end()


def test_what_ends_too_early_is_refused():
    for read in (Fields.unsigned, Fields.integer):
        with pytest.raises(ValueError, match="after the value"):
            read(Fields(b"\1\1"), 4)
    for read_whole in (Fields.value, Fields.string):
        with pytest.raises(ValueError, match=r"."):
            read_whole(Fields(b"\1\1"))
    with pytest.raises(ValueError, match="after the value"):
        Fields(b"\0\0\0\2a").value()
    with pytest.raises(ValueError, match="after the value"):
        Fields(b"\xff\xff\xff\xfe").value()


def test_what_is_left_over_is_refused():
    fields = Fields(b"\0\0")
    fields.integer(1)
    with pytest.raises(ValueError, match="left over"):
        fields.end()
