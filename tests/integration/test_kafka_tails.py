"""The last records of topics are read backwards, no further than is wanted, and committed ones only."""

from collections.abc import Sequence

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from cdcd.adapters.kafka import bounded_reading
from cdcd.adapters.kafka.bounded_reading import Last, read_last, read_tails
from deploy.local import KafkaBroker
from tests.integration.created_topics import create_topics
from tests.integration.visible_records import await_decided


def test_each_partition_is_read_until_it_is_enough(broker: KafkaBroker, unique: str, monkeypatch):
    # GIVEN a topic with two partitions, of transactions one of which was aborted
    servers: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap_servers}
    create_topics(broker.bootstrap_servers, unique, partitions=2)
    producer = Producer({**servers, "transactional.id": unique})
    producer.init_transactions()
    for batch in range(10):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(unique, value=f"{batch}.{number}", partition=batch % 2)
        # librdkafka may end a transaction that the broker does not know yet, which is fatal to the producer.
        producer.flush()
        producer.abort_transaction() if batch == 7 else producer.commit_transaction()
    await_decided(broker.bootstrap_servers, unique)
    # WHEN it is read by four records at first, until something of the first batches comes
    monkeypatch.setattr(bounded_reading, "FIRST", 4)
    seen: list[list[bytes | None]] = []

    def is_enough(values: Sequence[bytes | None]) -> bool:
        seen.append(list(values))
        return any(value is not None and value[:1] in b"45" for value in values)

    found = list(read_tails(servers, unique, [unique, f"{unique}_none"], is_enough))
    # THEN the later batches of both partitions are there, without the aborted one, and not the first ones
    batches = {value[:1] for value in found if value is not None}
    assert batches >= {b"4", b"5", b"6", b"8", b"9"}
    assert not batches & {b"0", b"1", b"7"}
    assert len(found) == len(set(found))
    # AND a look goes from the end to the beginning, each in the order of the partition
    assert all(values == sorted(values, key=lambda value: value or b"") for values in seen)


def test_the_last_records_of_all_partitions_are_read_whatever_is_left_of_each(
    broker: KafkaBroker, unique: str
):
    # GIVEN a partition with many records, an empty one, and one whose first records were deleted
    servers: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap_servers}
    create_topics(broker.bootstrap_servers, unique, partitions=3)
    producer = Producer(servers)
    for partition, records in ((0, 60), (2, 20)):
        for number in range(records):
            producer.produce(unique, value=f"{number}", partition=partition)
    assert producer.flush(30) == 0
    admin = AdminClient(servers)
    (deleted,) = admin.delete_records([TopicPartition(unique, 2, 17)]).values()
    assert deleted.result(30).low_watermark == 17
    # WHEN the last 16 records of each partition are read, of this topic and of one that does not exist
    found = list(read_last(servers, unique, [f"{unique}_none", unique], Last(16, 10, 30.0)))
    # THEN each partition has its last ones, in their order, and nothing else
    offsets = [[each.offset() for each in found if each.partition() == number] for number in range(3)]
    assert offsets == [list(range(44, 60)), [], [17, 18, 19]]
