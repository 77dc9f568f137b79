"""Many records of one partition: several tasks read them, and each record is read once."""

import os
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.kafka import TASK_RECORDS, KafkaSource
from deploy.local.kafka_broker import KafkaBroker

RECORDS = int(os.environ.get("CDCD_TEST_RECORDS", str(2 * TASK_RECORDS)))
"""The figure in docs/evidence.md was taken with 2 million."""


def test_a_topic_of_one_partition_is_read_by_several_tasks(spark: SparkSession, tmp_path: Path):
    with KafkaBroker(tmp_path / "kafka") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("large", 1, 1)])["large"].result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50})
        for number in range(RECORDS):
            producer.produce("large", str(number).encode(), partition=0)
            if number % 10_000 == 0:
                producer.flush(60)
        assert producer.flush(60) == 0
        source = KafkaSource(broker.bootstrap_servers)
        rows = source.read(spark, "large", {0: 0}, {0: RECORDS}).withColumn("task", sf.spark_partition_id())
        values = sf.col("value").cast("string").cast("bigint")
        tasks = rows.groupBy("task").agg(sf.count("*"), sf.min(values), sf.max(values)).collect()
    print(f"{RECORDS} records, {len(tasks)} tasks")
    assert len(tasks) > 1, tasks
    # The tasks divide the records among themselves.
    reached = -1
    for _, count, first, last in sorted(tasks, key=lambda task: task[2]):
        assert (first, count) == (reached + 1, last - first + 1), tasks
        reached = last
    assert reached == RECORDS - 1
