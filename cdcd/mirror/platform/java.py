"""Classes of Java by their names, and what collections of Java have.

The first rule: no class is named part by part, as in `spark._jvm.java.util.ArrayList`. Py4J asks Java for a class of
each part that it is given ("java", "java.util"), and Java looks for it in every jar, each time again. In a mirror of
100 small tables, that was 43 % of Java's time.

The second rule: no loop goes over a collection of Java. It ends by an exception of Java, and to find out which one it
is, PySpark asks Java for 45 classes.
"""

import json
from typing import Any, Final

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

PATH: Final = "org.apache.hadoop.fs.Path"
LIST: Final = "java.util.ArrayList"
_JSON: Final = "com.fasterxml.jackson.databind.ObjectMapper"


def java(spark: SparkSession, name: str) -> Any:
    """The class with this name, nested ones with `$`. Whether there is one turns out when it is used (Py4JError).

    Args:
        spark: a classic session (`session.check_classic`).
    """
    gateway: Any = spark.sparkContext._gateway
    return JavaClass(name, gateway._gateway_client)


def array(spark: SparkSession, of: str, values: list[Any]) -> Any:
    """An array of Java.

    Args:
        of: the class of its elements.
    """
    gateway: Any = spark.sparkContext._gateway
    made = gateway.new_array(java(spark, of), len(values))
    for place, value in enumerate(values):
        made[place] = value
    return made


def identifier(spark: SparkSession, namespace: list[str], name: str) -> Any:
    """The name of a table, as catalogs of Spark take it."""
    of = java(spark, "org.apache.spark.sql.connector.catalog.Identifier").of
    return of(array(spark, "java.lang.String", namespace), name)


def elements(collection: Any) -> list[Any]:
    """The elements of a collection of Java."""
    array_ = collection.toArray()
    return [array_[place] for place in range(len(array_))]


def texts(spark: SparkSession, map_: Any) -> dict[str, str]:
    """The entries of a map of Java from text to text, by one call instead of two for each entry."""
    found: dict[str, str] = json.loads(java(spark, _JSON)().writeValueAsString(map_))
    return found


def mapped(map_: Any) -> dict[Any, Any]:
    """The entries of a map of Java."""
    return {entry.getKey(): entry.getValue() for entry in elements(map_.entrySet())}
