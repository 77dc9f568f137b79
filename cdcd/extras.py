"""Libraries of the extras, which are installed only with `cdcd[EXTRA]` and loaded only where a key asks for them."""

import importlib
from typing import Any

from cdcd.core.errors import ConfigError


def library(module: str, extra: str, need: str) -> Any:
    """Return a module of an extra.

    Args:
        need: what needs which library, such as "otlp.endpoint needs OpenTelemetry's SDK".

    Raises:
        ConfigError: the module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{need}, which cannot be imported: {error}",
            hint=f"Install cdcd with the extra: pip install 'cdcd[{extra}]'.",
        ) from None
