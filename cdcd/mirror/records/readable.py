"""Which tables cannot be mirrored because of the form of their records: each has a reason, and a way on that works."""

from collections.abc import Collection

from cdcd.core.errors import SourceError
from cdcd.core.records.schemas import TableForm
from cdcd.core.table_names import table_text
from cdcd.mirror.records.values import FORMATS


def check_readable(form: TableForm, others: Collection[TableForm], *, by_header: bool) -> None:
    """Raise SourceError if the rows of a table cannot be derived from its topic.

    Args:
        others: all descriptions of the pipeline.
        by_header: records come from a log, which reads the header `cdcd.change`.
    """
    _check_values(form, others, by_header=by_header)
    if form.routes:
        raise SourceError(
            f"{form.schema}.{form.table}: its rows are routed to several topics (routes.tables), and the mirror "
            "follows one topic of a table.",
            hint="Mirror a pipeline without routes of this table: a second one, with a slot and a prefix of its "
            "own; or leave the table out of the mirror.",
        )
    _check_topic(form)
    if form.cloudevents:
        raise SourceError(
            f"{form.schema}.{form.table}: its records are CloudEvents (format.value), which the mirror"
            " does not read.",
            hint="Mirror a pipeline with format.value: json, or leave the table out of the mirror.",
        )
    if form.repeats:
        raise SourceError(
            f"{form.schema}.{form.table}: several of its rows may have the same key (key.columns), so it is not "
            f"known which row a record changes.",
            hint="Add the columns of its primary key to key.columns of the daemon's configuration, or leave the"
            " table out of the mirror.",
        )
    if form.computed:
        raise SourceError(
            f"{form.schema}.{form.table}: expressions make fields of its records ({', '.join(form.computed)}; "
            "fields.tables, computed), which are not the columns of the table.",
            hint="Mirror a second pipeline without computed fields for this table, with a slot and a prefix of its "
            "own; or leave the table out of the mirror, and compute the fields in a view of the mirror.",
        )
    if form.bare_key or form.key_constants:
        raise SourceError(
            f"{form.schema}.{form.table}: the keys of its records have a form (key.forms) that the mirror does not "
            "read.",
            hint="Mirror a second pipeline without key.forms for this table, with a slot and a prefix of its own; "
            "or leave the table out of the mirror.",
        )
    if form.moves:
        raise SourceError(
            f"{form.schema}.{form.table}: columns that are not of its key choose the partitions of its records"
            " (partitioner.columns), so the records of a row have no order.",
            hint="Choose the partitions by columns of the key in the daemon's configuration, or leave the table out"
            " of the mirror.",
        )
    if form.skipped:
        raise SourceError(
            f"{form.schema}.{form.table}: its topic leaves out the operations {', '.join(form.skipped)}, so the "
            f"rows of the table cannot be derived from it.",
            hint="Take topics.skipped_operations out of the daemon's configuration, or leave the table out of the"
            " mirror.",
        )


def _check_values(form: TableForm, others: Collection[TableForm], *, by_header: bool) -> None:
    """Raise SourceError if the records do not tell their changes, or in a format that is not read.

    Args:
        others: all descriptions.
    """
    table = table_text(form.schema, form.table)
    former = [each for each in others if each.topic == form.topic and each.oid == form.oid]
    if form.flattened and not (by_header and form.change_header):
        raise SourceError(
            f"{table}: its records are flattened (event_flattening), so the order of the changes of a row is not "
            "known.",
            hint="Set format.change_header: true in the daemon's configuration, with a topics.prefix of its own, and "
            "mirror those topics with change_log: fold. Or leave the table out of the mirror.",
        )
    if form.flattened and not form.key:
        raise SourceError(
            f"{table}: its records are flattened (event_flattening), and it has no key, so a record of an update does "
            "not tell which row it changes.",
            hint="Give the table a primary key. Or mirror a pipeline without event_flattening, or leave the table out "
            "of the mirror.",
        )
    if form.change_header and any(each.flattened and not each.change_header for each in former):
        raise SourceError(
            f"{table}: its topic {form.topic} also has flattened records from before format.change_header, which do "
            "not tell their order.",
            hint="Give the pipeline another topics.prefix, and mirror those topics.",
        )
    if form.change_header not in ("", *FORMATS):
        raise SourceError(
            f"{table}: its records are in the format {form.change_header} (format.value), which the mirror does not "
            "read.",
            hint=f"Set format.value to one of {', '.join(FORMATS)} in the daemon's configuration, with a topics.prefix "
            "of its own, and mirror those topics. Or leave the table out of the mirror.",
        )


def _check_topic(form: TableForm) -> None:
    """Raise SourceError if the table shares its topic, or if the topic lacks records of the table."""
    if form.shared:
        raise SourceError(
            f"{form.schema}.{form.table}: its topic {form.topic} has the records of several tables (topics.shared), "
            "and the mirror follows topics of one table.",
            hint="Mirror a second pipeline without topics.shared for this table, with a slot and a prefix of its own; "
            "or leave the table out of the mirror.",
        )
    if form.letters:
        raise SourceError(
            f"{form.schema}.{form.table}: records that its topic cannot have go to the dead letters "
            "(kafka.dead_letters), so the rows of the table cannot be derived from the topic.",
            hint="Mirror a pipeline without kafka.dead_letters: a second one, with a slot and a prefix of its own; "
            "or leave the table out of the mirror.",
        )
