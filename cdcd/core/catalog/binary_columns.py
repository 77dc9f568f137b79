"""Check that all columns of a relation can be received in binary form.

pgoutput sends a value in binary form if its column's type has a send function, else as text. So a column can be
read unless its type has a send function but no reader here. A type with components (array, composite, range) always
has a send function. If a component has none, this function fails in the server and ends the stream.
"""

from collections.abc import Mapping

from cdcd.core.catalog.hints import HINT_BINARY
from cdcd.core.catalog.logical import logical_type
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import WithoutBinaryError
from cdcd.core.protocol.messages import Column, Relation


def unreadable_binary(relation: Relation, types: Mapping[int, TypeDescription]) -> tuple[str, ...]:
    """Return the names of column types with unreadable binary form, each once; () if there is none.

    Args:
        types: catalog descriptions of types that are not built in; a type without description is unreadable.
    """
    unreadable = [column for column in relation.columns if not _is_readable(column, types)]
    return tuple(dict.fromkeys([_type_name(column.type_oid, types) for column in unreadable]))


def require_binary(relation: Relation, types: Mapping[int, TypeDescription]) -> None:
    """Refuse a relation with a column whose binary form cannot be read.

    Raises:
        WithoutBinaryError: the message names the table, the first such column and its type.
    """
    for column in relation.columns:
        if not _is_readable(column, types):
            raise WithoutBinaryError(
                f"Column {column.name!r} of {relation.schema}.{relation.name} has the type"
                f" {_type_name(column.type_oid, types)}, whose binary form cdcd cannot read.",
                hint=HINT_BINARY,
            )


def _is_readable(column: Column, types: Mapping[int, TypeDescription]) -> bool:
    description = BUILTIN_TYPES.get(column.type_oid) or types.get(column.type_oid)
    if description is not None and not description.sends:
        return True
    return logical_type(column.type_oid, column.type_modifier, types).reads_binary


def _type_name(oid: int, types: Mapping[int, TypeDescription]) -> str:
    description = BUILTIN_TYPES.get(oid) or types.get(oid)
    if description is None:
        return f"with oid {oid}"
    if description.is_array:
        return f"{_type_name(description.element_oid, types)}[]"
    if description.namespace == "pg_catalog":
        return description.name
    return f"{description.namespace}.{description.name}"
