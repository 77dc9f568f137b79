from cdcd.core.catalog.relations import TableDescription
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.debezium_json.changes import put_whole
from cdcd.core.records.debezium_json.converter import QUOTED
from cdcd.core.records.debezium_json.row_layout import DescribedTable, Layouts
from cdcd.core.records.debezium_json.table_fragments import TableFragments, Tally
from cdcd.core.records.encoder import EncoderSettings

COLUMNS = (Column(1, "id", 23, -1), Column(0, "name", 25, -1), Column(0, "note", 25, -1))


def fragments(*columns: Column, identity: str = "d") -> TableFragments:
    relation = Relation(None, 1, "s", "t", identity, columns)
    return TableFragments(
        DescribedTable(relation, TableDescription(), {}),
        Layouts(EncoderSettings("1", "p", "d", unavailable="n/a")),
        topic="p.s.t",
        tally=Tally(),
    )


def test_a_column_has_its_slot_in_the_event_and_in_the_old_row():
    made = fragments(*COLUMNS)
    for (slot, mode, _), column in zip(made.plan, COLUMNS, strict=True):
        assert made.event_template[slot] == made.old_template[slot] == b""
        before = slot - 1
        if mode in QUOTED:
            assert made.event_template[slot - 1] == made.event_template[slot + 1] == b'"'
            before -= 1
        assert made.event_template[before].endswith(b'"%b":' % column.name.encode())


def test_the_old_row_by_itself_is_an_object():
    made = fragments(*COLUMNS)
    old = made.old_template.copy()
    for slot, _, _ in made.plan:
        old[slot] = b"1"
    assert b"".join(old) == b'{"id":1,"name":"1","note":"1"}'
    assert b"".join(fragments().old_template) == b"{}"


def test_what_the_old_row_has_is_taken_over_and_the_rest_stays_empty():
    made = fragments(*COLUMNS)
    id_slot, name_slot, note_slot = [slot for slot, _, _ in made.plan]
    old = made.old_template.copy()
    old[id_slot], old[name_slot] = b"1", b"a"
    values = made.event_template.copy()
    assert made.take_over(values, [id_slot, name_slot], old, [], whole=False) == [name_slot]
    assert made.take_over(values, [id_slot, name_slot, note_slot], old, [note_slot], whole=True) == [
        note_slot
    ]
    assert b"".join(values).endswith(b'{"id":1,"name":"a","note":""}')
    assert made.stand_in(values, [note_slot]) == [b'"note"']
    assert b"".join(values).endswith(b'{"id":1,"name":"a","note":"n/a"}')


def test_a_null_in_the_old_row_is_no_large_value_that_was_not_sent():
    made = fragments(*COLUMNS)
    id_slot, name_slot, _ = [slot for slot, _, _ in made.plan]
    old = made.old_template.copy()
    put_whole(old, name_slot, b"null")
    old[id_slot] = b"null"
    values = made.event_template.copy()
    assert made.take_over(values, [id_slot, name_slot], old, [], whole=True) == [id_slot, name_slot]
    # A text that says null is one.
    old = made.old_template.copy()
    old[name_slot] = b"null"
    assert made.take_over(values, [name_slot], old, [], whole=True) == []
    assert b',"name":"null",' in b"".join(values)
