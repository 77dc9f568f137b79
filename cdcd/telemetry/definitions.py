"""Definitions of metrics: name, type, labels and meaning, their samples, and their rows in docs/metrics.md."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)

from cdcd.core.visible import visible

Sample = tuple[tuple[str, ...], float | None]
"""(values of the labels, value); None: the value is unknown, so there is no sample."""

T = TypeVar("T")
"""Type of the object with the figures."""


@dataclass(frozen=True, slots=True)
class Definition(Generic[T]):
    """Definition of one metric.

    Args:
        read: returns the samples, from the object with the figures and the time (Unix seconds).
    """

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    read: Callable[[T, float], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def families(definitions: Iterable[Definition[T]], numbers: T) -> Iterator[Metric]:
    """Yield the present samples."""
    now = time.time()
    for definition in definitions:
        family = (CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily)(
            definition.name, definition.help, labels=definition.labels
        )
        for labels, value in definition.read(numbers, now):
            if value is not None:
                family.add_metric([label_value(label) for label in labels], value)
        yield family


_WRITTEN: Final = re.compile(r"\\u[0-9a-f]{4}")


def label_value(text: str) -> str:
    """Return the text as a label value, with hidden characters written out.

    Two names never give the same label, because samples with equal labels would break the scrape. So if a name has
    hidden characters or looks like written-out ones, its backslashes are doubled.
    """
    if visible(text, lines=True) == text and _WRITTEN.search(text) is None:
        return text
    return visible(text.replace("\\", "\\\\"), lines=True)


Row = tuple[str, str, tuple[str, ...], str]


def row(definition: Definition[Any]) -> Row:
    """Return a metric's name, kind, labels and meaning."""
    return (definition.name, definition.kind, definition.labels, definition.help)


def table(rows: Iterable[Row]) -> str:
    """Return the lines of a table of metrics."""
    lines = [
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {meaning} |"
        for name, kind, labels, meaning in rows
    ]
    return "\n".join(lines) + "\n"
