from cdcd.core.records.schema_registrations import (
    TEXT_BYTES_MAX,
    Registration,
    SchemaIds,
    SchemaUse,
    read_registration,
)

USE = SchemaUse("s", "text")


def test_an_id_in_the_schemas_topic_is_taken_if_it_is_of_this_registry():
    ids = SchemaIds("http://a")
    ids.put(USE, 7)
    key, value = ids.record(USE)
    assert b'"subject":"s"' in key
    same, other = SchemaIds("http://a"), SchemaIds("http://b")
    assert same.take(value)
    assert same.get(USE) == 7
    assert same.get(SchemaUse("s", "another text")) is None
    assert not other.take(value)
    assert other.get(USE) is None


def test_other_records_of_the_schemas_topic_are_passed_over():
    ids = SchemaIds("http://a")
    for value in (
        b"",
        b"{}",
        b"[]",
        b'{"schema":"public","table":"t"}',
        b'{"subject":1,"schema":2,"id":"x","registry":3}',
    ):
        assert not ids.take(value)
        assert read_registration(value) is None


def test_forgotten_ids_are_not_known_any_more():
    ids = SchemaIds("http://a", [(USE.known_as, 7)])
    assert ids.newest() == 7
    assert ids.forget() == 1
    assert (ids.newest(), ids.get(USE)) == (None, None)


def test_a_registration_has_the_schema_if_it_is_asked_for_and_fits_into_a_record():
    use = SchemaUse("s", '{"type": "é"}')
    ids = SchemaIds("http://a", [(use.known_as, 7)])
    assert read_registration(ids.record(use)[1]) == Registration(7, "", "")
    assert read_registration(ids.record(use, whole=True)[1]) == Registration(7, "AVRO", use.text)
    large = SchemaUse("s", "x" * TEXT_BYTES_MAX)
    ids.put(large, 8)
    _, value = ids.record(large, whole=True)
    assert read_registration(value) == Registration(8, "", "")
    # AND the largest one is read again
    fits = SchemaUse("s", '"' * (TEXT_BYTES_MAX // 2 - 1))
    ids.put(fits, 9)
    same = SchemaIds("http://a")
    assert same.take(ids.record(fits, whole=True)[1])
    assert same.get(fits) == 9
