"""Secrets that change while the daemon runs: files that hold them are read again before each connection.

Certificates and keys that libpq and librdkafka are given as files need nothing of this: they read them themselves,
whenever they connect or are made again.
"""

from pydantic import SecretStr

from cdcd.config.models import Config
from cdcd.config.sources import read_secret


def reread(config: Config) -> Config:
    """`config` with what its files hold now. One that is unreadable, being replaced perhaps, keeps what it gave."""
    postgres, kafka = config.postgres, config.kafka
    secrets = {
        name: SecretStr(text)
        for name, file in (("dsn", postgres.dsn_file), ("password", postgres.password_file))
        if file is not None and (text := _present(file))
    }
    properties = {
        name: SecretStr(text) for name, file in kafka.properties_files.items() if (text := _present(file))
    }
    registry = config.registry
    logins = {
        name: SecretStr(text)
        for name, file in (("password", registry.password_file), ("token", registry.token_file))
        if file is not None and (text := _present(file))
    }
    return config.model_copy(
        update={
            "postgres": postgres.model_copy(update=secrets),
            "registry": registry.model_copy(update=logins),
            "kafka": kafka.model_copy(update={"properties": {**kafka.properties, **properties}}),
        }
    )


def _present(file: object) -> str:
    text, wrong = read_secret(str(file))
    return "" if wrong else text
