import pytest

from cdcd.core.records.schema_names import adjusted


@pytest.mark.parametrize(
    ("name", "avro", "unicode"),
    [
        ("shop.public.t.Value", "shop.public.t.Value", "shop.public.t.Value"),
        # As tests/debezium/golden/modes.json has them.
        ("a-1_x.public.log.Key", "a_1_x.public.log.Key", "a_u002d1_u005fx.public.log.Key"),
        ("2-b_c.1st-name_.Key", "__b_c.1st_name_.Key", "_u0032_u002db_u005fc.1st_u002dname_u005f.Key"),
        ("ä😀", "__", "_u00e4_ud83d_ude00"),
    ],
)  # fmt: skip
def test_a_name_is_made_one_that_avro_takes(name, avro, unicode):
    assert adjusted(name, "none") == name
    assert adjusted(name, "avro") == avro
    assert adjusted(name, "avro_unicode") == unicode
