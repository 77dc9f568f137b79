"""Defaults that depend on the pipeline's name.

A field says its own in `json_schema_extra`, as a template over `name`, `prefix` (of the topics) and `tmp`
(the system's directory for temporary files): `{"default_from": "cdcd_{name}"}`.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from cdcd.config.types import Section
from cdcd.scratch import temporary_directory


def default_template(field: FieldInfo) -> str | None:
    """The template of a default that depends on the pipeline's name, such as `cdcd_{name}`."""
    extra = field.json_schema_extra
    template = extra.get("default_from") if isinstance(extra, dict) else None
    return template if isinstance(template, str) else None


def section_of(field: FieldInfo) -> type[Section] | None:
    """The model behind a key that is a mapping with fixed keys."""
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def with_derived_defaults(model: type[Section], data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with the defaults that depend on the name; a section that is absent or empty becomes a
    mapping.
    """
    name = data.get("name")
    # A name that is wrong is reported as such, and not once more with each key derived from it.
    usable = isinstance(name, str) and re.fullmatch(r"[a-z0-9_]{1,58}", name, re.ASCII) is not None
    values = {"name": str(name) if usable else "name", "tmp": temporary_directory()}
    topics = data.get("topics")
    prefix = topics.get("prefix") if isinstance(topics, dict) else None
    usable = isinstance(prefix, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,200}", prefix, re.ASCII) is not None
    values["prefix"] = str(prefix) if usable else values["name"]
    return _fill(model, data, values)


def _fill(model: type[Section], data: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    filled = dict(data)
    for key, field in model.model_fields.items():
        given = filled.get(key)
        if (section := section_of(field)) is not None:
            if given is None or isinstance(given, dict):
                filled[key] = _fill(section, given or {}, values)
        elif given is None and (template := default_template(field)) is not None:
            filled[key] = template.format_map(values)
    return filled
