"""What the folds of tables of states (`states.py`) and of changelogs (`changes.py`) have in common.

Such a table keeps what its source has no more, so it cannot be made again from a log that retention has shortened. Its
position is kept apart from its commits too, and a table whose position is not known stops. Columns that the source has
dropped stay under another name.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError, SourceError
from cdcd.core.pasted import begin_again
from cdcd.mirror.base.columns import alterations, definition, digest, present
from cdcd.mirror.base.commit import Folded, Folding
from cdcd.mirror.base.formats import MADE_BY, TOPIC_ID, BaseFormat, Version, check_made, form_property
from cdcd.mirror.base.part import Forms, Part, Place
from cdcd.mirror.base.path import Path
from cdcd.mirror.base.position import Position
from cdcd.mirror.base.takeover import folded
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.platform.tables import exists
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, check


@dataclass(frozen=True, slots=True)
class KeptFolded:
    """What a fold of such a table did.

    Attributes:
        folded: the same for every fold.
        missing: the LSNs (after, up to) between which the table lacks changes, because the log lacks them. None: the
            fold left none out.
    """

    folded: Folded
    missing: tuple[int, int] | None = None


class KeptFolding(Folding):
    """One fold of one such table.

    Args:
        kind: value of the property `MADE_BY` of such tables.
        columns: the table's own columns, with their types in SQL.
        option: the option of the configuration that asks for the table.

    Attributes:
        missing: as in `KeptFolded`.
    """

    kind: str
    columns: Mapping[str, str]
    option: str

    def __init__(
        self, spark: SparkSession, format_: BaseFormat, place: Place, forms: Forms, bound: int
    ) -> None:
        super().__init__(spark, format_, place, forms, bound)
        self.missing: tuple[int, int] | None = None

    @abstractmethod
    def attempt(self) -> Folded | None:
        """Fold once. None: another commit came in between, or the table needs one more statement."""

    def fold(self) -> KeptFolded:
        """Fold until no other commit comes in between.

        Raises:
            OvertakenError: others committed at the same time, several times.
            SourceError, SinkError, IncompatibleSchemaError: the table cannot be folded until a person acts.
        """
        place = self._place
        try:
            done = folded(self._spark, self._format, place, self.attempt, self.kind)
            return KeptFolded(done, self.missing)
        except IncompatibleSchemaError as error:
            raise IncompatibleSchemaError(
                place.table, f"{place.name}: {error.what}", begin_again(place.table)
            ) from error

    def _read(self) -> tuple[Version | None, Position, str | None]:
        """Return the version of the table, its position, and Kafka's id of its topic. None: there is no table.

        SinkError: the position is not known.
        """
        spark, name = self._spark, self._place.name
        if not exists(spark, name):
            return None, Position(), None
        topic_id = check_made(spark, name, self._place.table, self.kind).get(TOPIC_ID)
        there = self._format.version(spark, name)
        if there.position is None:
            # The log may be younger than the rows, so they cannot be made again from it.
            raise SinkError(
                f"{self._place.table}: no commit that is left says how far {name} is folded.",
                hint=f"Rename or drop {name}: the next fold makes the table again from the log.",
            )
        return there, self._log.begin(there.position), topic_id

    def _check_names(self, schema: TableSchema) -> None:
        """SourceError: a column of the source has the name of one of the table's own columns."""
        check(schema)
        taken = [column.name for column in schema.columns if column.name.casefold() in self.columns]
        if taken:
            raise SourceError(
                f"{schema.table}: the column {taken[0]} has the name of a column of {self._place.name}.",
                hint=f"Rename the column at the source, or remove the table from {self.option}.",
            )

    def _create(self, schema: TableSchema, topic: dict[str, str]) -> Version:
        columns = [definition(column, schema.oid) for column in schema.columns]
        columns += [f"{quoted(name)} {type_}" for name, type_ in self.columns.items()]
        given = form_property(digest(schema), schema.to_json()) | topic | {MADE_BY: self.kind}
        self._format.create(self._spark, self._place.name, ", ".join(columns), given)
        check_made(self._spark, self._place.name, self._place.table, self.kind)
        return self._format.version(self._spark, self._place.name)

    def _alterations(self, path: Path) -> Iterator[str]:
        there = [
            each
            for each in present(self._spark.table(self._place.name).schema)
            if each.name not in self.columns
        ]
        return alterations(there, path.schema, anew=path.has is None, keeps=True)

    def _keep(self, pin: str, done: Folded | None) -> Folded | None:
        """Keep the position of the commit that followed `pin`, because an owner may expire the commit."""
        after = self._format.version(self._spark, self._place.name)
        if done is not None and after.pin != pin and after.position is not None:
            self._format.keep(self._spark, self._place.name, after.pin, after.position)
        return done


def topic_of(part: Part) -> dict[str, str]:
    """The property that names the topic of a part."""
    return {TOPIC_ID: min(part.topic_ids)} if part.topic_ids else {}
