"""Which configurations of the mirror and of its pipeline exclude each other. A rule that is broken is a ConfigError."""

from typing import TYPE_CHECKING

from cdcd.core.errors import ConfigError

if TYPE_CHECKING:
    from cdcd.config.loading import Config
    from cdcd.config.mirror import MirrorConfig


def check_sources(config: "MirrorConfig", pipeline: "Config | None", *, consistent: bool) -> None:
    """Check whether the mirror can read the tables of this pipeline from their database; None: it reads topics only.

    Args:
        consistent: `--consistent` was given.
    """
    _check_reload(config, pipeline is not None)
    _check_protected(pipeline)
    _check_filters(pipeline)
    _check_routes(pipeline)
    _check_pipeline(pipeline)
    _check_tags(config, consistent=consistent)


def check_modes(config: "MirrorConfig", *, consistent: bool, commands: bool, tables: bool) -> None:
    """Check whether `change_log` allows the other options.

    Args:
        consistent: `--consistent` was given.
        commands: `--relayout` or `--replay-quarantine` was given.
        tables: `--snapshot` was given.
    """
    if config.change_log == "only" and (consistent or config.batches.consistent or commands or tables):
        raise ConfigError(
            "change_log is only, so there are no tables for batches.consistent, --consistent, --snapshot, --relayout "
            "or --replay-quarantine.",
            hint="Remove these options, or set change_log to fold.",
        )
    _check_states(config)


def _check_reload(config: "MirrorConfig", source: bool) -> None:
    """Tables that are to be read again need a database. ConfigError: none is named."""
    tables = config.tables
    if not source and "reload" in (tables.on_incompatible, *tables.on_incompatible_for.values()):
        raise ConfigError(
            "tables.on_incompatible is reload, but the configuration has no address of the database.",
            hint="Set source to the daemon's configuration, or start with --source FILE.",
        )


def _check_states(config: "MirrorConfig") -> None:
    """ConfigError: tables of states are asked for, and no tables are folded from a log."""
    if config.change_log != "fold" and config.tables.scd2:
        raise ConfigError(
            f"change_log is {config.change_log}, and tables of tables.scd2 are folded from a log.",
            hint="Remove change_log, so that tables are folded, or remove tables.scd2.",
        )


def _check_tags(config: "MirrorConfig", *, consistent: bool) -> None:
    """Raise ConfigError if tags are asked for, but the mirror has no common LSNs that tags could name."""
    if config.batches.tag_interval_s is not None and not (consistent or config.batches.consistent):
        raise ConfigError(
            "batches.tag_interval_s needs consistent batches, because only their common LSNs get tags.",
            hint="Set batches.consistent to true or start with --consistent, or remove batches.tag_interval_s.",
        )


def _check_protected(pipeline: "Config | None") -> None:
    """ConfigError: the daemon protects columns, whose values Spark would read in clear."""
    if pipeline is not None and pipeline.columns.patterns:
        raise ConfigError(
            "The pipeline's configuration protects columns (`columns`), and Spark would read their values in clear "
            "from the database.",
            hint="Start the mirror without --source, and let cdcd read the tables: "
            "cdcd snapshot start <schema>.<table>.",
        )


def _check_filters(pipeline: "Config | None") -> None:
    """ConfigError: the daemon filters rows, which Spark would read all the same."""
    if pipeline is not None and pipeline.filters.tables:
        raise ConfigError(
            f"The pipeline's configuration filters the rows of {', '.join(pipeline.filters.tables)} (filters.tables), "
            "and Spark would read all rows of these tables from the database.",
            hint="Start the mirror without --source, and let cdcd read the tables: "
            "cdcd snapshot start <schema>.<table>.",
        )


def _check_routes(pipeline: "Config | None") -> None:
    """ConfigError: the daemon routes rows, or tables share topics, and a mirror follows one topic of a table."""
    if pipeline is not None and pipeline.routes.tables:
        raise ConfigError(
            f"The pipeline's configuration routes the rows of {', '.join(pipeline.routes.tables)} to several topics "
            "(routes.tables), and cdcd mirror reads only one topic of a table.",
            hint="Mirror a pipeline without routes: a second one, with a slot and a prefix of its own.",
        )
    if pipeline is not None and pipeline.topics.shared:
        raise ConfigError(
            f"The pipeline's configuration has topics for several tables (topics.shared): "
            f"{', '.join(pipeline.topics.shared)}. cdcd mirror reads topics of one table.",
            hint="Mirror a pipeline without topics.shared: a second one, with a slot and a prefix of its own.",
        )


def check_records(pipeline: "Config") -> None:
    """Check whether a mirror can read the records of this pipeline."""
    if pipeline.event_flattening.enabled and not pipeline.format.change_header:
        raise ConfigError(
            "The pipeline's records are flattened (event_flattening), so the order of the changes of a row is not "
            "known.",
            hint="Set format.change_header: true in the pipeline's configuration, with a topics.prefix of its own. Or "
            "mirror a second pipeline without event_flattening.",
        )
    if pipeline.format.value == "cloudevents":
        raise ConfigError(
            "The pipeline's records are CloudEvents (format.value), which cdcd mirror does not read.",
            hint="Mirror a pipeline with format.value: json: a second one, with a slot and a prefix of its own.",
        )
    chosen = pipeline.format.value
    if pipeline.needs_registry and (chosen == "protobuf" or not pipeline.format.change_header):
        raise ConfigError(
            f"The pipeline's records need a schema registry (format.value: {chosen}), and cdcd mirror reads Avro and "
            "json_registry with the header cdcd.change only.",
            hint="Set format.change_header: true"
            + (" and format.value: avro" if chosen == "protobuf" else "")
            + " in the pipeline's configuration, with a topics.prefix of its own, and change_log: fold in the "
            "mirror's. Or mirror a second pipeline with format.value: json.",
        )
    skipped = [op for op in pipeline.topics.skipped_operations if op != "t"]
    if skipped:
        raise ConfigError(
            f"The pipeline's topics leave out the operations {', '.join(skipped)} (topics.skipped_operations), so the "
            f"rows of the tables cannot be derived from them.",
            hint="Mirror a pipeline that writes all operations.",
        )


def _check_pipeline(pipeline: "Config | None") -> None:
    """ConfigError: what the topics say is not what Spark would read from the database."""
    if pipeline is None:
        return
    check_records(pipeline)
    if pipeline.fields.renames:
        raise ConfigError(
            "The pipeline renames fields (fields.tables), and Spark would read rows by the names of the columns.",
            hint="Start the mirror without --source, and let cdcd read the tables: "
            "cdcd snapshot start <schema>.<table>.",
        )
    if pipeline.key.columns:
        raise ConfigError(
            "The pipeline chooses the keys of records (key.columns), and Spark would read rows by the keys of the "
            "tables.",
            hint="Start the mirror without --source, and let cdcd read the tables: "
            "cdcd snapshot start <schema>.<table>.",
        )
    chosen = {
        "decimal_handling_mode: double": pipeline.format.decimal_handling_mode == "double",
        "interval_handling_mode: numeric": pipeline.format.interval_handling_mode == "numeric",
        "hstore_handling_mode: map": pipeline.format.hstore_handling_mode == "map",
        "geometry_handling_mode: structured": pipeline.format.geometry_handling_mode == "structured",
    }
    for key in [name for name, is_set in chosen.items() if is_set]:
        raise ConfigError(
            f"Under format.{key}, the topics have values of another type than Spark reads from the database.",
            hint="Start the mirror without --source, and let cdcd read the tables: "
            "cdcd snapshot start <schema>.<table>.",
        )
