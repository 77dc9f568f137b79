"""The settings that decide how rows become records, and what changing each of them means for readers.

Records that are already in the topics stay as they are. So after such a change, the topics have records of both
kinds. The checkpoint has a checksum of each of these settings, and a start that finds another checksum reports the
change (`startup.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cdcd.core.catalog.money import DIGITS_OF_C
from cdcd.core.engine.checkpoint import RecordSettings
from cdcd.core.errors import PositionError
from cdcd.core.facts import Observer
from cdcd.core.facts.start import RecordSettingChanged
from cdcd.core.pasted import quoted

_BY: Final = "(`cdcd snapshot start --table SCHEMA.TABLE`)"
_AGAIN: Final = f"Read the tables again {_BY}, if readers need all rows in the present form."
_NEW_TOPICS: Final = (
    f"If readers cannot use both forms, give the pipeline new topics (topics.prefix) and read the tables into them "
    f"{_BY}. "
    "Or restore the former setting."
)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """What a change of a setting means for readers, and what to do."""

    effect: str
    hint: str


_TOPICS: Final = SettingChange("Earlier records stay in the topics of the former names.", _AGAIN)
_KEYS: Final = SettingChange(
    "Earlier records have keys by the former setting. Compaction and readers treat a row with two keys as two rows.",
    _NEW_TOPICS,
)
FORMS: Final = SettingChange("Earlier records have the form of the former setting.", _AGAIN)

CHANGES: Final[Mapping[str, SettingChange]] = MappingProxyType(
    {
        "topics.prefix": _TOPICS,
        "topics.name": _TOPICS,
        "topics.names": _TOPICS,
        "topics.rename": _TOPICS,
        "topics.skipped_operations": SettingChange(
            "The topics lack records that were skipped before. Readers still have the rows whose deletes were skipped.",
            _NEW_TOPICS,
        ),
        "topics.truncate": SettingChange(
            "The topics lack TRUNCATEs that were left out before. Readers still have the rows that these TRUNCATEs "
            "removed.",
            _NEW_TOPICS,
        ),
        "key.columns": _KEYS,
        "key.forms": _KEYS,
        "partitioner.columns": SettingChange(
            "Earlier records stay in their partitions. The records of a row may be in two partitions, and there is no "
            "order between partitions.",
            _NEW_TOPICS,
        ),
        "filters.tables": SettingChange(
            "Rows that only the former filters kept stay in the topics. Rows that only the new filters keep come with "
            "their next change.",
            _NEW_TOPICS,
        ),
        "routes.tables": SettingChange(
            "Earlier records stay in the topics that the former rules chose.", _NEW_TOPICS
        ),
        "fields.tables": FORMS,
        "columns": SettingChange(
            "Earlier records have the values of the former setting, in clear if it did not protect them.",
            f"Delete those records if nobody may read the values, and read the tables again {_BY}.",
        ),
        "columns.hash_key": SettingChange(
            "Earlier records have hashes by the former key. The same value has another hash now, so hashed columns do "
            "not join with earlier records.",
            _AGAIN,
        ),
        "columns.encryption_key": SettingChange(
            "Earlier records are encrypted with the former key, and the new key does not decrypt them.",
            f"Keep the former key as long as the topics have these records. {_AGAIN}",
        ),
        "format.key": _KEYS,
        "format.value": FORMS,
        "format.decimal_handling_mode": FORMS,
        "format.time_precision_mode": FORMS,
        "format.interval_handling_mode": FORMS,
        "format.binary_handling_mode": FORMS,
        "format.hstore_handling_mode": FORMS,
        "format.geometry_handling_mode": FORMS,
        "format.unavailable_value_placeholder": FORMS,
        "format.schema_name_adjustment_mode": FORMS,
        "format.change_header": SettingChange(
            "Some records in the topics have the header cdcd.change, and the others do not. `cdcd mirror` reads "
            "flattened rows, Avro and json_registry with the header only.",
            _NEW_TOPICS,
        ),
        "cloudevents": FORMS,
        "event_flattening": FORMS,
        "money.digits": SettingChange(
            "The database's default of lc_monetary, or money.digits, gives money another number of decimal digits now. "
            "Earlier amounts differ by a power of ten.",
            _AGAIN,
        ),
        "outbox.tables": FORMS,
    }
)
"""What a change means, by the name of the setting. A setting that is not listed changes no record of a row, or only
records that readers do not need."""

ASKED_MESSAGES: Final = ("postgres.messages", 0)
"""Entry among the settings of a checkpoint, which says that logical messages have records only if the configuration
asks for them. Checkpoints of versions that delivered all messages by default do not have it."""

ROOTS: Final = "publication.publish_via_partition_root"
"""Name of the entry among the checkpoint's settings that says how partitioned tables are published: 1 through their
root, 0 by partition.

The entry is missing until the pipeline has read a publication with a partitioned table.
"""


def with_roots(
    settings: RecordSettings, found: RecordSettings | None, via_root: bool | None
) -> RecordSettings:
    """Return the settings for the next checkpoint.

    `via_root` is the answer to `ReadRoots`; if it is None, the entry of `found` is kept.
    """
    known = known_roots(found) if via_root is None else via_root
    return settings if known is None else (*settings, (ROOTS, int(known)))


def known_roots(settings: RecordSettings | None) -> bool | None:
    """Return how partitioned tables were delivered: True through their root, False by partition, None if there was
    none.
    """
    known = dict(settings or ()).get(ROOTS)
    return None if known is None else bool(known)


def refuse_other_roots(
    found: RecordSettings | None, via_root: bool | None, publication: str
) -> PositionError | None:
    """Return the refusal to start if the records of partitioned tables would go to other topics; None if the pipeline
    may start.

    Args:
        found: the settings in the checkpoint.
        via_root: the answer to `ReadRoots`.
        publication: name of the publication.
    """
    known = known_roots(found)
    if known is None or via_root is None or known == via_root:
        return None
    now, former = ("by partition", "as a whole") if known else ("as a whole", "by partition")
    return PositionError(
        f"Publication {publication} publishes partitioned tables {now}. This pipeline has delivered them {former}. "
        f"Their changes would go to other topics now, and the present topics would get no more records.",
        hint=f"Restore the publication: ALTER PUBLICATION {quoted(publication)} SET (publish_via_partition_root = "
        f"{'true' if known else 'false'}); or, if consumers are prepared for the other topics, start once with "
        "`cdcd run --accept-gap`.",
    )


def with_money_digits(settings: RecordSettings, digits: int) -> RecordSettings:
    """Return the checksums of settings with the number of digits of money, which comes from the server or from the
    configuration.

    As for all these settings, there is no entry for the default.
    """
    others = [each for each in settings if each[0] != "money.digits"]
    if digits != DIGITS_OF_C:
        others.append(("money.digits", digits))
    return tuple(sorted(others))


class ComparedSettings:
    """The settings of records at a start: compares them with those of the checkpoint, and makes those of the next one.

    Args:
        records: the settings of the configuration; None: they are not compared.

    Attributes:
        money_digits: number of decimal digits of money, which the server may determine.
        roots_gap: the refusal of a publication that would send partitioned tables to other topics; None: none does.
    """

    def __init__(self, records: RecordSettings | None, publication: str, observe: Observer) -> None:
        self._records = records
        self._publication = publication
        self._observe = observe
        self.money_digits = DIGITS_OF_C
        self.roots_gap: PositionError | None = None
        self._via_root: bool | None = None

    def compare_roots(self, found: RecordSettings | None, via_root: bool | None) -> None:
        """Take the answer to `ReadRoots`, and compare it with the settings of the checkpoint."""
        self._via_root = via_root
        self.roots_gap = refuse_other_roots(found, via_root, self._publication)

    def _now(self) -> RecordSettings | None:
        """Return the settings with the digits of money from the server."""
        return None if self._records is None else with_money_digits(self._records, self.money_digits)

    def next(self, found: RecordSettings | None, *, delivers_messages: bool) -> RecordSettings | None:
        """Return the settings for the next checkpoint; None: they are not compared.

        Args:
            found: those of the checkpoint.
            delivers_messages: whether logical messages have records that the configuration does not ask for.
        """
        now = self._now()
        if now is None:
            return None
        records = with_roots(now, found, self._via_root)
        return records if delivers_messages else tuple(sorted((*records, ASKED_MESSAGES)))

    def report_changes(self, found: RecordSettings | None) -> None:
        """Report the settings that differ from the checkpoint's, before a checkpoint has the new ones."""
        now = self._now()
        if found is None or now is None:
            return
        changed = {name for name, _ in ({*found} ^ {*now}) - {ASKED_MESSAGES}} - {ROOTS}
        for name in sorted(changed):
            change = CHANGES.get(name, FORMS)
            self._observe(RecordSettingChanged(setting=name, effect=change.effect, hint=change.hint))
