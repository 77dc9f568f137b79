"""Where a connector's configuration is read from, and how cdcd.yaml is written."""

from pathlib import Path

from cdcd.core.errors import ConfigError
from cdcd.tools.adopt.adoption import Adoption, adopt
from cdcd.tools.adopt.connect_api import Connector, read_file
from cdcd.tools.adopt.judging import OVERRIDE, with_worker
from cdcd.tools.operations.first_files import write


def read(
    source: Connector | Path,
    worker: Path | None,
    kafka: str | None,
    name: str | None,
    file: Path,
    *,
    offline: bool,
) -> Adoption:
    """What becomes of the connector.

    Args:
        worker: file with the properties of Connect's worker.
        kafka: the brokers; None: those of the worker's properties, or of the connector's own producer.
        name: of the pipeline; None: that of the connector.
        file: what will be written.

    Raises:
        ConfigError: a file cannot be read, or is none of a connector's.
        ConnectError: Connect does not answer, or refuses.
    """
    options = source.options() if isinstance(source, Connector) else read_file(source)
    inherited = {} if worker is None else read_file(worker)
    extra: dict[str, object] = {} if name is None else {"name": name}
    brokers = kafka or (
        None if f"{OVERRIDE}bootstrap.servers" in options else inherited.get("bootstrap.servers")
    )
    if brokers is not None:
        extra["kafka.bootstrap_servers"] = brokers
    return adopt(with_worker(options, inherited), extra, str(file), asks_database=not offline)


def save(file: Path, text: str, *, force: bool) -> bool:
    """Write the file; False: it is there with the same text, as after a run that was interrupted.

    Raises ConfigError: it is there with another text and `force` is not given, or cannot be written.
    """
    if file.exists() and not force:
        try:
            if file.read_text(encoding="utf-8") == text:
                return False
        except (OSError, UnicodeDecodeError):
            pass
        raise ConfigError(
            f"{file} is there already, with another text, and was not written.",
            hint="Name another file (--output), or let cdcd overwrite it: --force.",
        )
    write({file: text}, force=force)
    return True
