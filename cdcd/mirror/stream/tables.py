"""The tables of a mirror: each is tried by itself, and stops by itself.

A failure is a table's own where it can be. What concerns all of them is raised.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdcd.core.errors import CdcdError, FatalError, FencedError, SinkError, TransientError
from cdcd.core.records.gaps import Aside
from cdcd.mirror.platform.kafka_admin import Admin, RecordsGoneError
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.snapshot.reading import SnapshotSource
from cdcd.mirror.stream.consistency import set_aside_error
from cdcd.mirror.stream.failures import classified, unexpected
from cdcd.mirror.stream.forms import UnknownFormError
from cdcd.mirror.stream.frontier import Tips
from cdcd.mirror.stream.points import Point
from cdcd.mirror.stream.reload import load_as_set, read_again
from cdcd.mirror.stream.sessions import Sessions
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.stream.table import TableMirror
from cdcd.mirror.stream.topics import Topics
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, way_on
from cdcd.mirror.targets.state import OriginError, RolledBackError, records_lost
from cdcd.mirror.targets.target import Target
from cdcd.mirror.watching.progress import (
    Observer,
    Progress,
    TableFailed,
    TableResumed,
    TableRolledBack,
    TableStopped,
    first_lines,
)
from cdcd.mirror.watching.stops import STOPPED, Stop, Stops, read_stops, write_stops

ATTEMPTS: Final = 3
"""How often a table is tried in one batch when it fails for a reason that may pass."""


class Tables:
    """The tables, by topic.

    Args:
        source: as in `Mirror`.

    Attributes:
        by_topic: those that were begun.
        stopped: why those do not go on that are stopped.
        aside: why those lack changes that the daemon has set aside. What their topics have is applied all the same.
        passed_over: topics of the tables that the last batch passed over because they were maintained, and of those
            that were rolled back since.
        once: the run ends with what is there now, so that nothing is tried again later.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: MirrorSettings,
        target: Target,
        observe: Observer,
        *,
        admin: Admin,
        descriptions: Descriptions,
        topics: Topics,
        source: SnapshotSource | None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._target = target
        self._observe = observe
        self._admin = admin
        self._descriptions = descriptions
        self._topics = topics
        self._source = source
        self._sessions = Sessions(spark)
        self.by_topic: dict[str, TableMirror] = {}
        self.stopped: dict[str, CdcdError] = {}
        self.aside: dict[str, CdcdError] = {}
        self.passed_over: set[str] = set()
        self.once = False
        self._stops = Stops()
        self._stops_read = False

    def forget(self) -> None:
        """After an error of all: look at every table again. Those that are maintained had no part in it."""
        for table in self.by_topic.values():
            if table.busy.acquire(blocking=False):
                try:
                    table.forget()
                finally:
                    table.busy.release()

    def pass_over(self, topic: str) -> None:
        """Bring a table up to date soon, though the last batch may have left nothing to read."""
        self.passed_over.add(topic)

    def look_anew(self, topic: str) -> None:
        """Let the next `advance` ask for the id of the topic, which may have been made again."""
        table = self.by_topic.get(topic)
        if table is not None:
            with table.busy:
                table.forget()

    @property
    def held_up(self) -> list[str]:
        """The topics of the tables that do not go on, in this process or in one before it."""
        return self._stops.topics

    def miss(self, topic: str) -> None:
        """Report that the topic was deleted, and stop its table, or try the table again with the next batch.

        If somebody dropped the target of the table, nothing is reported.
        """
        table = self.by_topic.get(topic) or self._new_table(topic)
        with table.busy, self._sessions.one() as spark:
            table.forget()
            table.use(spark)
            if not table.is_there:
                self._stops.went_on(topic)
                return
        self._hold(
            topic,
            self._topics.name(topic),
            SinkError(
                f"The topic {topic} was deleted.",
                hint="If the source still has the table, run the daemon: it makes the topic again with the table's next"
                " change. If the source dropped the table, drop the target table too.",
            ),
        )

    def set_aside(self, aside: Mapping[int, Aside]) -> None:
        """Report tables that the daemon has set aside as stopped, and those that came back as resumed.

        Args:
            aside: all of them by oid, as the schemas topic says.
        """
        oids = {
            topic: self._descriptions.oid(topic) for topic in self._topics.wanted(self._descriptions.topics())
        }
        now = {topic: aside[oid] for topic, oid in oids.items() if oid is not None and oid in aside}
        for topic in [topic for topic in self.aside if topic not in now]:
            del self.aside[topic]
            if topic not in self.stopped and self._stops.went_on(topic):
                self._observe(TableResumed(self._topics.name(topic)))
        for topic, found in now.items():
            table = self._topics.name(topic)
            error = set_aside_error(found)
            if topic not in self.aside:
                self._observe(TableStopped(table, error.message, error.hint))
            self.aside[topic] = error
            if topic not in self.stopped:
                self._stops.failed(topic, Stop(table, datetime.now(UTC), False, error.message, error.hint))

    def may_lack(self, topic: str, ends: Mapping[int, int]) -> bool:
        """Whether a table may lack what lies before `ends`."""
        table = self.by_topic.get(topic)
        return table is None or table.may_lack(ends)

    def followed(self) -> list[TableMirror]:
        return [table for topic, table in list(self.by_topic.items()) if topic not in self.stopped]

    def advance(
        self,
        topic: str,
        ends: Mapping[int, int],
        batch_id: int,
        point: Point | None,
        tips: Tips,
    ) -> Progress | None:
        """One table's part of a batch; None where it failed, which is then reported, or where it is maintained now."""
        table = self.by_topic.get(topic)
        if table is None:
            table = self.by_topic[topic] = self._new_table(topic)
        # A common LSN, and the end of a run, wait for all tables; else the table catches up when it is free.
        if not table.busy.acquire(blocking=point is not None or self.once):
            self.passed_over.add(topic)
            return None
        try:
            with self._sessions.one() as spark:
                table.use(spark)
                return self._attempt(topic, table, ends, batch_id, point, tips)
        finally:
            table.busy.release()

    def _attempt(
        self,
        topic: str,
        table: TableMirror,
        ends: Mapping[int, int],
        batch_id: int,
        point: Point | None,
        tips: Tips,
    ) -> Progress | None:
        cut = None if point is None else point.commit_lsn
        for attempt in range(1, ATTEMPTS + 1):
            try:
                progress = table.advance(ends, batch_id, cut, lambda: tips.of(topic))
                if point is not None and not progress.ahead:
                    progress = replace(progress, versions=table.pin(point.tag))
                if topic not in self.aside and self._stops.went_on(topic):
                    self._observe(TableResumed(table.table))
                return progress
            except UnknownFormError as error:
                table.forget()
                self._hold(topic, table.table, error)
                return None
            except (IncompatibleSchemaError, OriginError) as error:
                table.forget()
                if not self._reload(topic, table.table, error, attempt):
                    return None
            except RolledBackError as error:
                table.forget()
                if attempt == ATTEMPTS:
                    self.stop(topic, table.table, error)
                    return None
                self._observe(TableRolledBack(table.table, error.message, error.hint))
            except (TransientError, FencedError):
                table.forget()
                raise
            except FatalError as error:
                table.forget()
                self.stop(topic, table.table, error)
                return None
            except (PySparkException, Py4JError) as error:
                table.forget()
                if not self._spark_failed(topic, table.table, error, attempt):
                    return None
            except Exception as error:  # noqa: BLE001 - whatever a table raises is that table's own
                table.forget()
                self.stop(topic, table.table, unexpected(error))
                return None
        return None

    def _spark_failed(
        self, topic: str, table: str, error: PySparkException | Py4JError, attempt: int
    ) -> bool:
        """Judge what Spark or Java raised for a table. True: try the table again. False: it was stopped.

        Raises:
            TransientError: Kafka does not answer, which concerns all tables.
        """
        known = classified(error, self._settings.kafka.bootstrap_servers)
        if isinstance(known, TransientError):
            raise known from error
        if isinstance(known, RecordsGoneError):
            return self._reload(topic, table, records_lost(known.message, table), attempt)
        if known is not None or attempt == ATTEMPTS:
            self.stop(topic, table, known or FatalError(first_lines(error)))
            return False
        self._observe(TableFailed(table, first_lines(error), ""))
        return True

    def _new_table(self, topic: str) -> TableMirror:
        settings = self._settings
        name = self._topics.name(topic)
        return TableMirror(
            self._spark,
            settings.kafka,
            topic,
            admin=self._admin,
            facts=self._topics.facts_of,
            topic_id=self._topics.id_of,
            target=self._target,
            descriptions=self._descriptions,
            history=settings.keeps_history(name),
            slice_max=settings.batch_records_max,
            layout=settings.layout_of(name),
            compacted="compact" in self._topics.policies.get(topic, ""),
        )

    def stop(self, topic: str, table: str, error: CdcdError) -> None:
        self._observe(TableStopped(table, error.message, error.hint))
        self.stopped[topic] = error
        self._stops.failed(topic, Stop(table, datetime.now(UTC), False, error.message, error.hint))

    def _hold(self, topic: str, table: str, error: CdcdError) -> None:
        """The next batch tries the table again; a run that ends has none."""
        if self.once:
            self.stop(topic, table, error)
        else:
            self._observe(TableFailed(table, error.message, error.hint))
            self._stops.failed(topic, Stop(table, datetime.now(UTC), True, error.message, error.hint))

    def _reload(self, topic: str, table: str, why: CdcdError, attempt: int) -> bool:
        """Read a table again that its target cannot follow, or stop the table, if the settings say so.

        Returns:
            Whether the table is to be tried again, because it was read, or because Spark failed at an early attempt.
            Else it is reported why it was not read.
        """
        if self._source is None or not self._settings.reloads(table) or attempt == ATTEMPTS:
            self.stop(topic, table, why)
            return False
        spark = self._spark.newSession()
        try:
            load_one = partial(load_as_set, spark, self._target, self._settings)
            read_again(spark, self._source, load_one, self._observe, table, why.message)
        except FencedError:
            raise
        except TransientError as error:
            self._hold(topic, table, error)
        except CdcdError as error:
            self.stop(topic, table, error)
        except (PySparkException, Py4JError) as error:
            known = classified(error, self._settings.kafka.bootstrap_servers)
            if isinstance(known, TransientError):
                raise known from error
            message = f"It was not read again: {first_lines(error)}"
            if attempt < ATTEMPTS - 1:
                self._observe(TableFailed(table, message, ""))
                return True
            self.stop(topic, table, FatalError(message, hint=way_on(table)))
        except Exception as error:  # noqa: BLE001 - whatever a table raises is that table's own
            self.stop(topic, table, unexpected(error))
        else:
            return True
        return False

    def read_stops(self) -> None:
        """Read which tables were stopped when a process before this one ended."""
        if self._stops_read:
            return
        try:
            self._stops.found(read_stops(self._spark, self._target))
        except (PySparkException, Py4JError) as error:
            raise (classified(error, self._settings.kafka.bootstrap_servers) or error) from error
        self._stops_read = True

    def note_stops(self) -> None:
        """Record which tables are stopped, if that has changed. What cannot be written now is written later."""
        changes = self._stops.changes(datetime.now(UTC))
        if not changes:
            return
        try:
            self._write_stops(changes)
        except (PySparkException, Py4JError) as error:
            name = self._target.own_name(STOPPED)
            self._observe(TableFailed(name, f"stopped tables are not recorded: {first_lines(error)}", ""))
        else:
            self._stops.written(changes)

    def _write_stops(self, changes: Mapping[str, Stop | None]) -> None:
        write_stops(self._spark, self._target, changes)
