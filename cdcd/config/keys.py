"""Which keys there are: what a path leads to, how its text is read, and which key was perhaps meant."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Final, Union, get_args, get_origin

import yaml
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from cdcd.config.defaults import default_template, section_of
from cdcd.config.models import Config
from cdcd.config.types import Section

KeyPath = tuple[str | int, ...]

_YAML_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})


def dotted(path: KeyPath) -> str:
    """The path as people write it: `postgres.tables[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def values_of(section: Section, parent: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Yield the path and value of every key of a section, of the sections in it, and of their lists and mappings."""
    for name in type(section).model_fields:
        yield from _values(getattr(section, name), (*parent, name))


def secrets_of(section: Section) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path and text of every secret of a section."""
    for path, value in values_of(section):
        if isinstance(value, SecretStr):
            yield path, value.get_secret_value()


def _values(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(value, Section):
        yield from values_of(value, path)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _values(each, (*path, key))
    elif isinstance(value, tuple | list):
        for place, each in enumerate(value):
            yield from _values(each, (*path, place))
    else:
        yield path, value


def field_at(path: KeyPath, root: type[Section] = Config) -> FieldInfo | None:
    """The field that the path leads to; None where there is none, or inside a mapping with free keys."""
    section: type[Section] | None = root
    field = None
    for part in path:
        if section is None or not isinstance(part, str) or part not in section.model_fields:
            return None
        field = section.model_fields[part]
        section = section_of(field)
    return field


def has_free_keys(field: FieldInfo) -> bool:
    """Whether the key is a mapping with any keys, such as kafka.properties."""
    return get_origin(field.annotation) is dict


def read_text(text: str, path: KeyPath, root: type[Section] = Config) -> object:
    """Text from the environment as the value that the key takes.

    Where the key takes text, the text is the value, so that a password of digits stays one. Elsewhere it is
    read as a YAML scalar (or flow sequence or mapping).
    """
    field = field_at(path, root)
    if field is None:
        parent = field_at(path[:-1], root)
        return text if parent is not None and has_free_keys(parent) else _read_yaml(text)
    kinds = set(_kinds(field.annotation))
    nullable = type(None) in kinds or default_template(field) is not None
    if text in _YAML_NULLS and nullable:
        return None
    return text if kinds & {str, SecretStr, Path} else _read_yaml(text)


def _kinds(annotation: object) -> Iterator[object]:
    """The types that a value may have, out of unions and annotations, but not what is in lists and mappings."""
    origin = get_origin(annotation)
    if origin in {Union, UnionType}:
        for one in get_args(annotation):
            yield from _kinds(one)
    elif origin is Annotated:
        yield from _kinds(get_args(annotation)[0])
    else:
        yield annotation


def _read_yaml(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def suggestion(path: KeyPath, root: type[Section] = Config) -> str:
    """What a person who wrote an unknown key perhaps meant, as the end of a sentence; empty if there is no
    idea.
    """
    *parent, key = path
    section: type[Section] | None = root
    if parent:
        field = field_at(tuple(parent), root)
        section = None if field is None else section_of(field)
    siblings = list(section.model_fields) if section is not None else []
    everywhere = [known for known in all_keys(root) if known[-1] == key]
    # Outside of all sections, a section that was left out is likelier than a slip that makes another key's name.
    near = difflib.get_close_matches(str(key), siblings, n=1, cutoff=0.6)
    if near and (parent or not everywhere):
        return f"; did you mean {dotted((*parent, near[0]))}?"
    if everywhere:
        return f"; did you mean {' or '.join(dotted(known) for known in everywhere)}?"
    return f"; known here: {', '.join(siblings)}" if siblings else ""


def all_keys(section: type[Section] = Config, parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every key, sections before what is in them."""
    for name, field in section.model_fields.items():
        yield (*parent, name)
        if (inner := section_of(field)) is not None:
            yield from all_keys(inner, (*parent, name))
