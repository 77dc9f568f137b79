"""Spark's own counters: what the plans of statements read and shuffled."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

READ: Final = "number of output rows"
SHUFFLED: Final = "shuffle records written"


@contextmanager
def counted(spark: SparkSession, scan: str) -> Iterator[Counter[str]]:
    """Counts of the statements that run meanwhile: READ by scans whose name has `scan`, and SHUFFLED in all."""
    found: Counter[str] = Counter()
    spark_: Any = spark
    context = spark_.sparkContext._jsc.sc()
    store = spark_._jsparkSession.sharedState().statusStore()
    # Counters come by way of a bus.
    context.listenerBus().waitUntilEmpty()
    before = {each.executionId() for each in _all(store.executionsList())}
    yield found
    context.listenerBus().waitUntilEmpty()
    for execution in _all(store.executionsList()):
        if execution.executionId() in before:
            continue
        values = store.executionMetrics(execution.executionId())
        for node in _all(store.planGraph(execution.executionId()).allNodes()):
            for metric in _all(node.metrics()):
                value = values.get(metric.accumulatorId())
                if value.isDefined() and (metric.name() == SHUFFLED or _is_read(node, metric, scan)):
                    found[metric.name()] += int(value.get().replace(",", ""))


def _is_read(node: Any, metric: Any, scan: str) -> bool:
    return metric.name() == READ and "Scan" in node.name() and scan in node.desc()


def _all(items: Any) -> Iterator[Any]:
    iterator = items.iterator()
    while iterator.hasNext():
        yield iterator.next()
