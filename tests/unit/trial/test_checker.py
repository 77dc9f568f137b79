"""The checker finds each known anomaly that is planted into recorded topics, and nothing where there is none."""

from dataclasses import replace

from tests.trial.checker import Kind
from tests.trial.history import Outcome, Row, Write
from tests.unit.trial.recorded import recorded


def test_topics_without_an_anomaly_have_none():
    made = recorded()
    made.sample(10_000)
    assert made.check() == []


def test_a_transaction_without_records_is_lost():
    made = recorded()
    made.drop(lambda record: record.commit_lsn == 1100)
    assert Kind.LOST in made.kinds()


def test_a_transaction_of_unknown_outcome_that_was_committed_is_lost_without_records():
    made = recorded()
    made.drop(lambda record: record.commit_lsn == 600)
    assert Kind.LOST in made.kinds()


def test_a_lost_append_in_the_middle_is_seen_by_the_next_one_too():
    made = recorded()
    made.drop(lambda record: record.commit_lsn == 300)
    texts = [str(anomaly) for anomaly in made.check()]
    assert any("list k is not the former one" in text for text in texts)
    assert any("version 3 of k follows 1" in text for text in texts)


def test_a_lost_delete_leaves_a_row_too_many():
    made = recorded()
    made.drop(lambda record: record.write.row is None)
    assert made.kinds() == {Kind.TORN, Kind.DIFFERENT}


def test_a_record_that_comes_again_is_doubled_and_not_reordered():
    made = recorded()
    record = made.records[made.at(6, "registers")[0]]
    made.records.append(replace(record, offset=99))
    assert made.kinds() == {Kind.DOUBLED}


def test_a_transaction_that_comes_again_is_doubled():
    made = recorded()
    for record in [record for record in made.records if record.commit_lsn == 300]:
        made.records.append(replace(record, offset=99))
    assert made.kinds() == {Kind.DOUBLED}


def test_two_versions_of_a_key_in_the_other_order_are_reordered():
    made = recorded()
    (one,), (two,) = made.at(2, "lists"), made.at(3, "lists")
    first, second = made.records[one], made.records[two]
    made.records[one], made.records[two] = (
        replace(second, offset=first.offset),
        replace(first, offset=second.offset),
    )
    assert made.kinds() == {Kind.REORDERED}


def test_a_key_in_two_partitions_is_reordered():
    made = recorded()
    (place,) = made.at(3, "lists")
    record = made.records[place]
    made.records[place] = replace(record, partition=1 - record.partition)
    assert made.kinds() == {Kind.REORDERED}


def test_events_of_one_transaction_in_another_order_are_reordered():
    made = recorded()
    places = [at for at in made.at(10, "bulk") if made.records[at].partition == 0]
    one, two = places[:2]
    first, second = made.records[one], made.records[two]
    made.records[one] = replace(second, offset=first.offset)
    made.records[two] = replace(first, offset=second.offset)
    assert made.kinds() == {Kind.REORDERED}


def test_a_part_of_a_transaction_is_torn():
    made = recorded()
    last = made.at(10, "bulk")[-1]
    del made.records[last]
    assert Kind.TORN in made.kinds()


def test_half_of_a_transfer_changes_the_sum_of_the_accounts():
    made = recorded()
    last = made.at(6, "accounts")[-1]
    del made.records[last]
    assert any("the accounts have 290, not 300" in str(anomaly) for anomaly in made.check())


def test_a_delete_whose_transaction_is_gone_is_torn():
    made = recorded()
    made.drop(lambda record: record.commit_lsn == 900 and record.write.row is not None)
    assert Kind.TORN in made.kinds()


def test_a_record_of_a_transaction_that_was_rolled_back_is_an_aborted_read():
    made = recorded()
    made.deliver(made.history[4].writes[0], 500, 1)
    assert Kind.ABORTED in made.kinds()


def test_a_record_of_a_savepoint_that_was_rolled_back_is_an_aborted_read():
    made = recorded()
    made.deliver(made.history[9].undone[0], 1000, 7)
    assert Kind.ABORTED in made.kinds()


def test_a_record_of_a_transaction_of_unknown_outcome_that_is_not_there_is_an_aborted_read():
    made = recorded()
    made.deliver(made.history[6].writes[0], 700, 1)
    assert Kind.ABORTED in made.kinds()


def test_a_record_with_another_value_is_different():
    made = recorded()
    (place,) = made.at(11, "registers")
    record = made.records[place]
    made.records[place] = replace(record, write=Write("registers", "r", "u", Row(2, "another", 11)))
    assert Kind.DIFFERENT in made.kinds()


def test_a_record_of_nobody_is_different():
    made = recorded()
    made.deliver(Write("registers", "s", "c", Row(1, "1", 77)), 7700, 1)
    assert made.kinds() == {Kind.DIFFERENT}


def test_what_was_confirmed_before_its_record_was_there_is_confirmed_too_early():
    made = recorded()
    late = made.at(11, "registers")[0]
    record = made.records.pop(late)
    made.sample(1100)
    made.records.insert(late, record)
    assert made.check() == []
    made.samples.clear()
    made.records.pop(late)
    made.sample(1101)
    made.sample(1101)
    made.records.insert(late, record)
    assert [anomaly.kind for anomaly in made.check()] == [Kind.EARLY], "once, however long it lasts"


def test_a_record_that_came_again_does_not_count_against_an_early_confirmation():
    made = recorded()
    made.sample(2000)
    record = made.records[made.at(6, "registers")[0]]
    made.records.append(replace(record, offset=99))
    assert made.kinds() == {Kind.DOUBLED}


def test_a_partition_that_did_not_answer_says_nothing():
    made = recorded()
    made.sample(2000)
    made.samples[0] = replace(made.samples[0], ends={})
    assert made.check() == []


def test_what_the_source_lost_or_has_too_much_is_no_fault_of_the_pipeline():
    made = recorded()
    made.history[0] = replace(made.history[0], outcome=Outcome.FAILED)
    assert made.kinds() == {Kind.SOURCE}
    made = recorded()
    made.history[4] = replace(made.history[4], outcome=Outcome.OK)
    assert made.kinds() == {Kind.SOURCE}
