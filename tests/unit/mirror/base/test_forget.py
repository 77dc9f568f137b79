from cdcd.mirror.base.forget import rows_of_key


def test_a_key_is_also_found_in_columns_that_it_had_before_its_type_changed():
    columns = ["b__dropped", "b__dropped_2", "b__dropped_by", "note"]
    assert rows_of_key(columns, {"a": "CAST('7' AS int)", "b": "CAST('x' AS string)"}) == (
        "(`a` = CAST('7' AS int)) AND (`b` = CAST('x' AS string)"
        " OR CAST(`b__dropped` AS string) = CAST(CAST('x' AS string) AS string)"
        " OR CAST(`b__dropped_2` AS string) = CAST(CAST('x' AS string) AS string))"
    )
