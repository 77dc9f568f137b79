from deploy.demo.dice import Dice
from deploy.demo.transactions import KINDS, NEEDS, RUN
from deploy.demo.workload import Features
from deploy.demo.workload_tables import TABLES, statement


def test_a_seed_gives_the_same_statements() -> None:
    first, second, other = Dice("1.0", 0), Dice("1.0", 0), Dice("1.1", 1)
    assert [statement(first) for _ in range(300)] == [statement(second) for _ in range(300)]
    assert statement(first) != statement(other)


def test_every_table_comes_up_and_placeholders_match_values() -> None:
    dice = Dice("7.0", 0)
    seen = [statement(dice) for _ in range(3000)]
    for made in seen:
        assert made.sql.replace("%%", "").count("%s") == len(made.values), made.sql
    for table in TABLES:
        assert any(table.name in made.sql for made in seen), table.name


def test_own_keys_are_nobody_elses() -> None:
    mine, yours = Dice("1", 0), Dice("1", 1)
    mine.own = yours.own = True
    assert not {mine.key() for _ in range(500)} & {yours.key() for _ in range(500)}


def test_every_kind_of_transaction_can_be_run_and_left_out() -> None:
    assert KINDS.keys() == RUN.keys()
    assert NEEDS.keys() <= KINDS.keys()
    assert all(hasattr(Features(), name) for name in NEEDS.values())
