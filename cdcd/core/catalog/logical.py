"""Conversion of a column's type to its logical type, through domains, arrays and enums: the basis of all formats; and
the check that all columns of a relation can be received in binary form.

`types.py` has the built-in types; this module adds the types that the catalog describes.

pgoutput sends a value in binary form if its column's type has a send function, else as text. So a column can be
read unless its type has a send function but no reader here. A type with components (array, composite, range) always
has a send function. If a component has none, this function fails in the server and ends the stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cdcd.core.catalog.binary_compound import reader_for
from cdcd.core.catalog.binary_text import Reader, plain
from cdcd.core.catalog.hints import HINT_BINARY
from cdcd.core.catalog.money import DIGITS_OF_C, PRECISION, Rewrite, rewrite_of
from cdcd.core.catalog.relations import Labels, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES, EXTENSIONS, MONEY, NESTING_MAX, ROWS, Form
from cdcd.core.errors import SourceError, WithoutBinaryError
from cdcd.core.protocol.messages import Column, Relation


@dataclass(frozen=True, slots=True)
class LogicalType:
    """Logical type of a column's values.

    Attributes:
        name: name in the table of `types.py`.
        read: reads the binary form of values as text; None: it is unreadable, or the server sends none.
        form: form of the values in JSON (`form_of`).
        modifier: `atttypmod` of the column or the domain; -1: none was declared.
        element: logical type of an array's elements.
        delimiter: separator of an array's elements.
        labels: labels of an enum with their oids.
        rewrite: rewrites the text of money if its digits differ from those of lc_monetary C; None: no rewriting.
    """

    name: str
    read: Reader | None = None
    form: str = "text"
    modifier: int = -1
    element: "LogicalType | None" = None
    delimiter: str = ","
    labels: Labels = ()
    rewrite: Rewrite | None = None

    @property
    def reads_binary(self) -> bool:
        """True if values can be received in binary form."""
        return self.read is not None if self.element is None else self.element.reads_binary


def logical_type(
    oid: int,
    modifier: int,
    types: Mapping[int, TypeDescription],
    nesting: int = 0,
    money_digits: int = DIGITS_OF_C,
) -> LogicalType:
    """Return the logical type of a column's type.

    Args:
        modifier: `atttypmod` of the column; a domain's own modifier has precedence.
        types: catalog descriptions of types that are not built in; a type without description is `text`.
        money_digits: number of decimal digits of money.

    Raises:
        SourceError: the types are nested without end.
    """
    if nesting > NESTING_MAX:
        raise SourceError(
            f"A column's type is nested more than {NESTING_MAX} levels deep (domains, arrays, composite types), at the "
            f"type with oid {oid}.",
            hint="Give the column a type with fewer levels, or leave the table out (tables.exclude).",
        )
    if oid == MONEY:
        form = f"decimal({PRECISION},{money_digits})"
        return LogicalType("money", ROWS[oid].read, form, money_digits)
    row = ROWS.get(oid)
    if row is not None and row.logical != "text":
        return LogicalType(row.logical, row.read, _form(row.form, modifier), modifier)
    description = BUILTIN_TYPES.get(oid) or types.get(oid)
    if description is None:
        return LogicalType("text", modifier=modifier)
    if description.kind == "d":
        return logical_type(description.base_oid, description.base_modifier, types, nesting + 1, money_digits)
    if description.is_array:
        element = logical_type(description.element_oid, modifier, types, nesting + 1, money_digits)
        return LogicalType("array", None, element.form, modifier, element, description.delimiter)
    if description.kind == "e":
        return LogicalType("enum", plain, labels=description.labels)
    if description.kind == "b" and description.namespace != "pg_catalog" and description.name in EXTENSIONS:
        return extension_type(description.name, modifier, sends=description.sends)
    rewrite = rewrite_of(oid, types, money_digits)
    return LogicalType("text", reader_for(oid, types), modifier=modifier, rewrite=rewrite)


def extension_type(name: str, modifier: int = -1, *, sends: bool = True) -> LogicalType:
    """Return the logical type of an extension's type. KeyError: the type is unknown."""
    row = EXTENSIONS[name]
    return LogicalType(row.logical, row.read if sends else None, _form(row.form, modifier), modifier)


def _form(form: Form, modifier: int) -> str:
    return form if isinstance(form, str) else form(modifier)


def form_of(oid: int, modifier: int, types: Mapping[int, TypeDescription], *, dimensions: int = 1) -> str:
    """Return the form of a column's values in JSON (`records/schemas.py`); `dimensions` are the declared ones.

    For types that are nested without end it is `text`, as for unknown types.
    """
    try:
        return form_of_type(logical_type(oid, modifier, types), dimensions)
    except SourceError:
        return "text"


def form_of_type(logical: LogicalType, dimensions: int = 1) -> str:
    """Return the form of a logical type's values, as `form_of`."""
    if logical.element is None:
        return logical.form
    return form_of_type(logical.element) + "[]" * max(1, dimensions)


def labels_of(oid: int, types: Mapping[int, TypeDescription]) -> Labels:
    """Return the labels of an enum, of a domain over an enum, or of an array of an enum; () for other types."""
    for _ in range(NESTING_MAX):
        description = types.get(oid)
        if description is None:
            return ()
        if description.kind == "e":
            return description.labels
        oid = description.element_oid if description.is_array else description.base_oid
    return ()


def is_lasting(oid: int, types: Mapping[int, TypeDescription]) -> bool:
    """Return True if the type's description is known and final.

    The labels of enums change without a message in the stream.
    """
    return oid in types and not labels_of(oid, types)


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
