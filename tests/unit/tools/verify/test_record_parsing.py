import json

import pytest

from cdcd.tools.verify.record_parsing import (
    Cut,
    NotARecordError,
    Row,
    RowForm,
    _cut_known,
    _cut_whole,
    after_of,
    cut,
    pairs,
)

SOURCE = (
    b'{"version":"1","snapshot":"false","db":"d","table":"t","txId":7,"commit_lsn":500,"event_serial_no":3}'
)


def record(
    op: str = "c", before: bytes = b"null", after: bytes = b'{"id":1}', source: bytes = SOURCE
) -> bytes:
    return b'{"before":%b,"after":%b,"source":%b,"transaction":null,"op":"%b","ts_ms":1}' % (
        before,
        after,
        source,
        op.encode(),
    )


def test_values_are_the_bytes_that_stand_in_the_record():
    after = b'{"a":1.0,"b":"x\\"},{y","c":[1,["]",null],{"k":{}}],"d":{"x":-1e-30},"e":null,"f":true,"g":""}'
    found = cut(record(after=after), ()).after
    assert found == Row(
        (b'"a"', b'"b"', b'"c"', b'"d"', b'"e"', b'"f"', b'"g"'),
        (b"1.0", b'"x\\"},{y"', b'[1,["]",null],{"k":{}}]', b'{"x":-1e-30}', b"null", b"true", b'""'),
    )


def test_a_record_says_where_it_stands_and_what_it_left_out():
    headers = (("cdcd.unchanged", '["note","größe"]'.encode()), ("__debezium.oldkey", b'{"id":0}'))
    found = cut(record(), headers)
    assert (found.op, found.commit_lsn, found.serial, found.half) == ("c", 500, 3, 1)
    assert found.unchanged == (b'"note"', '"größe"'.encode())
    assert (found.old_key, found.new_key) == (b'{"id":0}', None)
    assert not found.of_snapshot


def test_the_place_in_a_text_is_not_the_records():
    text = json.dumps('{"snapshot":"true","commit_lsn":1,"event_serial_no":1}').encode()
    source = SOURCE.replace(b'"t"', text)
    found = cut(record(source=source), ())
    assert (found.commit_lsn, found.of_snapshot) == (500, False)


def test_a_record_of_another_connector_has_no_place():
    source = b'{"version":"3.0","snapshot":"first","db":"d","table":"t","txId":7,"lsn":5,"xmin":null}'
    found = cut(record("r", source=source), ())
    assert (found.commit_lsn, found.of_snapshot) == (0, True)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"", "not an object"),
        (b"[]", "not an object"),
        (record()[:-1], "not an object"),
        (record() + b" ", "not an object"),
        (record().replace(b'"op":', b'"op": '), "not an object"),
        (record().replace(b'"after":{', b'"after":[{'), "not an object"),
        (record().replace(b'{"id":1}', b'{"id":1x}'), "after"),
        (record().replace(b'{"id":1}', b'{"id":"\xff"}'), "UTF-8"),
        (record().replace(b'{"id":1}', b'{"id":1,"id":2}'), "twice"),
        (record("x"), "op is"),
        (record("d"), "before"),
        (record("u", after=b"null"), "after"),
        (record().replace(b'"snapshot"', b'"snapshit"'), "source"),
    ],
)
def test_what_no_encoder_writes_is_refused(value: bytes, said: str):
    with pytest.raises(NotARecordError, match=said):
        cut(value, ())


def test_a_list_of_unsent_columns_that_is_none_is_refused():
    for content in (b"", b"note", b'{"note":1}', None, b"[" * 9_000 + b"]" * 9_000, b'["\\ud800"]'):
        with pytest.raises(NotARecordError, match=r"cdcd\.unchanged"):
            cut(record(), (("cdcd.unchanged", content),))


def test_every_byte_that_is_altered_is_seen_or_changes_a_part():
    """No alteration of a byte gives the same parts, other than in what is not compared: the times."""
    whole = record("u", b'{"id":1,"n":"a\\\\b"}', b'{"id":1,"n":[1,"x",null]}')
    parts = cut(whole, ())
    end = whole.index(b',"ts_ms"')
    rows = range(whole.index(b'"after":') + 8, whole.index(b',"source"'))
    for at in range(end):
        for bit in (1, 4, 16):
            altered = bytes([*whole[:at], whole[at] ^ bit, *whole[at + 1 :]])
            try:
                found = cut(altered, ())
            except NotARecordError:
                continue
            if at in rows:
                assert found.after != parts.after, altered


@pytest.mark.parametrize(
    "value",
    [
        record(after=b'{"id":1,"source":{"k":1},"n":"a"}'),
        record("d", b'{"id":1,"after":null}', b"null"),
        record("u", b'{"id":1}', b'{"id":1}'),
        record("u", b'{"id":1,"s":{"after":null,"source":{}}}'),
        record().replace(
            b'"transaction":null', b'"transaction":{"id":"7:500","total_order":1,"source":{"after":1}}'
        ),
        record(source=SOURCE.replace(b"}", b',"schema_id":"0a9f"}')),
        record(source=SOURCE.replace(b'"t"', b'"t\\"1,"')),
    ],
)
def test_a_record_that_looks_like_others_is_cut_as_if_it_were_the_first_one(value: bytes):
    def whole(data: bytes) -> Cut | str:
        try:
            return _cut_whole(data)
        except NotARecordError as error:
            return str(error)

    cut_before = whole(value)
    form = form_of(value)
    for at in range(len(value)):
        for byte in b'0"\\},x':
            altered = bytes([*value[:at], byte, *value[at + 1 :]])
            known = _cut_known(altered, form)
            assert known is None or known == whole(altered), altered
    assert _cut_known(value, form) in {None, cut_before}


def form_of(*values: bytes) -> RowForm:
    """The form that these records have."""
    form = RowForm()
    for value in values:
        cut(value, (), form)
    return form


def test_records_with_the_same_columns_look_like_others():
    form = form_of(record())
    both = record("u", b'{"id":1}', b'{"id":2}')
    for value in (record(), record("d", b'{"id":1}', b"null"), both):
        assert _cut_known(value, form) == _cut_whole(value)
    assert after_of(both, form).values == (b"2",)
    for value in (record(after=b'{"ids":1}'), record(after=b'{"id":1,"n":2}'), record(after=b"{}")):
        assert _cut_known(value, form) is None


def test_a_value_that_is_an_object_now_and_then_is_looked_for():
    null, nested, text = (record(after=b'{"n":%b}' % value) for value in (b"null", b'{"k":[1,{}]}', b'"x"'))
    form = form_of(null)
    assert _cut_known(nested, form) is None
    form = form_of(null, nested, text)
    for value in (null, nested, text):
        assert _cut_known(value, form) == _cut_whole(value)
        assert after_of(value, form) == _cut_whole(value).after


def test_many_columns_are_cut_as_few_are():
    after = b"{%b}" % b",".join(b'"c%d":%d' % (number, number) for number in range(1000))
    form = form_of(record(after=after))
    assert _cut_known(record(after=after), form) is None
    assert len(after_of(record(after=after), form).values) == 1000


def test_positions_of_more_than_64_bits_are_refused():
    with pytest.raises(NotARecordError, match="64 bits"):
        cut(record(source=SOURCE.replace(b"500", b"9" * 30)), (), form_of(record()))


def test_an_empty_object_is_a_row_without_columns():
    assert pairs(b"{}", "it") == []
    assert cut(record(after=b"{}"), ()).after == Row((), ())
