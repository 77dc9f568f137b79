"""The tables that are folded from one topic: the table itself, its changelog, and its table of states."""

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from cdcd.core.pasted import begin_again
from cdcd.core.records.gaps import Aside
from cdcd.mirror.base.changes import fold_changes
from cdcd.mirror.base.commit import Folded
from cdcd.mirror.base.fold import fold
from cdcd.mirror.base.formats import BaseFormat
from cdcd.mirror.base.part import Forms, LacksChangesError, Place
from cdcd.mirror.base.plan import log_begins
from cdcd.mirror.base.shared import SharedRows
from cdcd.mirror.base.states import fold_states, states_name
from cdcd.mirror.log.job import Appended
from cdcd.mirror.log.positions import DELETED
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.platform.tables import exists
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.targets.target import Kind, Target, kind_of
from cdcd.mirror.watching.progress import ChangesMissing, Observer, StatesMissing, TableTakenOver, TopicUnfit
from cdcd.mirror.watching.stops import set_aside_error


@dataclass(frozen=True, slots=True)
class Lake:
    """Where a mirror keeps its log and its tables.

    Attributes:
        log: place of the log.
        format: of the base tables.
        target: names the base tables, and has the table of consistent points.
    """

    log: LogPlace
    format: BaseFormat
    target: Target


class TopicFolds:
    """Folds the tables of a topic.

    Args:
        forms: descriptions of all tables.
        observe: gets facts, from several threads.

    Attributes:
        log: what the log has in this round.
        policies: `cleanup.policy` of topics, as far as it is known.
        there: the topics that exist in this round.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: MirrorSettings,
        lake: Lake,
        forms: Descriptions,
        observe: Observer,
    ) -> None:
        self.log = Appended()
        self.policies: dict[str, str] = {}
        self.there: Collection[str] = ()
        self._spark = spark
        self._settings = settings
        self._lake = lake
        self._forms = forms
        self._observe = observe
        self._shared: SharedRows | None = None

    def using(self, spark: SparkSession, shared: SharedRows | None) -> "TopicFolds":
        """Return the same folds with another session, and with these rows of the log in memory."""
        folds = copy(self)
        folds._spark, folds._shared = spark, shared
        return folds

    def names(self, topic: str) -> list[str]:
        """The names in SQL of the tables."""
        schema, table = self._forms.newest(topic).schema, self._forms.table(topic) or topic
        names = [self._lake.target.name_of(schema, kind_of(schema))]
        if schema.key and self._settings.keeps_history(table):
            names.append(self._lake.target.name_of(schema, Kind.CHANGELOG))
        if schema.key and self._settings.keeps_states(table):
            names.append(states_name(self._lake.target, schema))
        return names

    def place(self, topic: str, ends: Mapping[int, int]) -> Place:
        """Return what is folded where.

        Args:
            ends: by partition, an offset below which the log has all records of the topic, and none after the bound.

        Raises:
            LacksChangesError: the topic lost records that the log has not read.
            CdcdError: the topic does not exist any more.
        """
        table, described = self._forms.table(topic) or topic, self._forms.newest(topic)
        schema = described.schema
        stopped = self.log.stopped.get(topic)
        if stopped is not None and self.log.gaps.get(topic) == DELETED and topic not in self.there:
            raise stopped
        if stopped is not None:
            raise LacksChangesError(stopped.message, hint=f"{stopped.hint}. {begin_again(table)}")
        name, log = self._lake.target.name_of(schema, kind_of(schema)), self._lake.log.name
        return Place(
            table,
            topic,
            name,
            log,
            log_version=self.log.version,
            log_begins=log_begins(self._spark, log, table, topic, self.log),
            began=self.log.began.get(topic),
            ends=ends,
            former_name=None if exists(self._spark, name) else self._forms.former_name(schema),
            layout=self._settings.layout_of(table),
            is_compacted=bool(schema.key) and "compact" in self.policies.get(topic, ""),
            shared=self._shared,
            described=described,
        )

    def where(self, topic: str) -> Place | None:
        """Return the place of a topic's table. None: the topic has no table, or only a changelog."""
        table, schema = self._forms.table(topic) or topic, self._forms.newest(topic).schema
        name = self._lake.target.name_of(schema, kind_of(schema))
        if not schema.key or not exists(self._spark, name):
            return None
        return Place(table, topic, name, self._lake.log.name, layout=self._settings.layout_of(table))

    def left_out(self, topic: str, bound: int) -> Aside | None:
        """Return why a topic lacks changes up to the bound. None: it has all of them.

        A table that has come back by now may have its rows only after the bound.
        """
        oid = self._forms.oid(topic) or 0
        for found in (self._forms.aside.get(oid), self._forms.returned.get(oid)):
            if found is not None and found.since <= bound and (found.until is None or bound < found.until):
                return found
        return None

    def fold(self, place: Place, bound: int) -> Folded:
        """Fold the table itself. Its changelog and its states are not folded.

        A table that is set aside is folded up to the last commit before its changes were left out, and raises.

        Raises:
            OvertakenError: others committed at the same time, several times.
            SourceError, SinkError, IncompatibleSchemaError: the table cannot be folded until a person acts.
        """
        left_out = self.left_out(place.topic, bound)
        upper = bound if left_out is None else left_out.since - 1
        if self._forms.newest(place.topic).schema.key:
            done = fold(self._spark, self._lake.format, place, self.forms_of(place.topic), upper)
            self._tell_takeover(place, done)
        else:
            done = self._fold_changes(place, upper)
        if left_out is not None:
            raise set_aside_error(left_out)
        return done

    def fold_beside(self, place: Place, bound: int) -> None:
        """Fold the changelog and the states of a table that is folded. Raises what `fold` raises."""
        schema, target = self._forms.newest(place.topic).schema, self._lake.target
        if schema.key and self._settings.keeps_history(place.table):
            changelog = target.name_of(schema, Kind.CHANGELOG)
            self._fold_changes(replace(place, name=changelog), bound, beside=True)
        if schema.key and self._settings.keeps_states(place.table):
            place = replace(place, name=states_name(target, schema))
            done = fold_states(self._spark, self._lake.format, place, self.forms_of(place.topic), bound)
            if done.missing is not None:
                self._observe(StatesMissing(place.table, place.name, *done.missing))

    def _fold_changes(self, place: Place, bound: int, *, beside: bool = False) -> Folded:
        """Fold the changelog `place.name`."""
        forms = self.forms_of(place.topic)
        done = fold_changes(self._spark, self._lake.format, place, forms, bound, beside=beside)
        self._tell_takeover(place, done.folded)
        if done.missing is not None:
            self._observe(ChangesMissing(place.table, place.name, *done.missing))
        return done.folded

    def _tell_takeover(self, place: Place, done: Folded) -> None:
        if done.taken_over is not None:
            self._observe(TableTakenOver(place.table, place.name, done.taken_over))

    def forms_of(self, topic: str) -> Forms:
        """Gives the forms of the topic."""
        return lambda ids: self._forms.find(topic, list(ids))

    def position_lsn(self, topic: str) -> int:
        """The LSN up to which the tables of a topic have folded the log.

        The tables' own commits say it, because an owner may have rolled a table back. It is 0 for a table that does
        not exist, or whose commits cannot be read.
        """
        return min(map(self._position_lsn, self.names(topic)))

    def _position_lsn(self, name: str) -> int:
        try:
            version = self._lake.format.version(self._spark, name) if exists(self._spark, name) else None
        except Exception:  # noqa: BLE001 - the fold of the table says why it cannot be read
            version = None
        position = None if version is None else version.position
        return 0 if position is None else position.lsn


def policy_problem(topic: str, policy: str, *, is_table: bool) -> TopicUnfit | None:
    """Judge a topic by its `cleanup.policy`. None: it keeps what the mirror needs, or the policy is unknown ("").

    Args:
        is_table: the topic has changes of a table. Otherwise it is the topic of descriptions.
    """
    alter = f"kafka-configs --alter --entity-type topics --entity-name {topic} --add-config cleanup.policy="
    if is_table and "compact" in policy:
        return TopicUnfit(
            topic,
            "is compacted: changes that compaction removes before they are mirrored take values along that later"
            " updates did not send (unchanged TOAST); the mirror names such columns in _cdcd_unknown",
            f"{alter}delete, or give the table REPLICA IDENTITY FULL.",
        )
    if not is_table and policy not in {"", "compact"}:
        return TopicUnfit(
            topic,
            f"has cleanup.policy={policy}: Kafka deletes descriptions after some time, and then their records cannot "
            f"be mirrored",
            f"{alter}compact",
        )
    return None
