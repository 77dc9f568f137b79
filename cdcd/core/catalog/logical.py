"""From a column's type to its logical type, through domains, arrays and enums: what every format converts by.

`types.py` has the types that are known by themselves; here are those that the catalog describes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cdcd.core.catalog.binary_compound import reader_for
from cdcd.core.catalog.binary_text import Reader, plain
from cdcd.core.catalog.money import DIGITS_OF_C, PRECISION, Rewrite, rewrite_of
from cdcd.core.catalog.relations import Labels, TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES, EXTENSIONS, MONEY, NESTING_MAX, ROWS, Form
from cdcd.core.errors import SourceError


@dataclass(frozen=True, slots=True)
class LogicalType:
    """What the values of a column are.

    Attributes:
        name: a name of the table in `types.py`.
        read: reads the binary form of values into their text; None: it cannot be read, or the server sends none.
        form: how JSON has the values (`form_of`).
        modifier: the column's `atttypmod`, or that of the domain; -1: none was declared.
        element: of an array, the type of its elements.
        delimiter: of an array, what stands between elements.
        labels: of an enum, with their oids.
        rewrite: rewrites the text, because it holds money whose digits are not those of lc_monetary C; None: it stays.
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
        """Whether values can come in binary form."""
        return self.read is not None if self.element is None else self.element.reads_binary


def logical_type(
    oid: int,
    modifier: int,
    types: Mapping[int, TypeDescription],
    nesting: int = 0,
    money_digits: int = DIGITS_OF_C,
) -> LogicalType:
    """The logical type of a column's type.

    Args:
        modifier: the column's `atttypmod`; a domain's own goes before it.
        types: what the catalog says about types that are not built in; one that it does not know is `text`.
        money_digits: how many digits of money stand behind the point.

    Raises:
        SourceError: the types are nested without an end.
    """
    if nesting > NESTING_MAX:
        raise SourceError(f"The type with oid {oid} is nested more than {NESTING_MAX} deep.")
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
    """The logical type of an extension's type. KeyError: it is not known."""
    row = EXTENSIONS[name]
    return LogicalType(row.logical, row.read if sends else None, _form(row.form, modifier), modifier)


def _form(form: Form, modifier: int) -> str:
    return form if isinstance(form, str) else form(modifier)


def form_of(oid: int, modifier: int, types: Mapping[int, TypeDescription], *, dimensions: int = 1) -> str:
    """How JSON has the values of a column (`records/schemas.py`); `dimensions` are those that it declares.

    Of types that are nested without an end it is `text`, as of types that nobody knows.
    """
    try:
        return form_of_type(logical_type(oid, modifier, types), dimensions)
    except SourceError:
        return "text"


def form_of_type(logical: LogicalType, dimensions: int = 1) -> str:
    """As `form_of`."""
    if logical.element is None:
        return logical.form
    return form_of_type(logical.element) + "[]" * max(1, dimensions)


def labels_of(oid: int, types: Mapping[int, TypeDescription]) -> Labels:
    """The labels of an enum, of a domain over one, or of an array of one; () for every other type."""
    for _ in range(NESTING_MAX):
        description = types.get(oid)
        if description is None:
            return ()
        if description.kind == "e":
            return description.labels
        oid = description.element_oid if description.is_array else description.base_oid
    return ()


def is_lasting(oid: int, types: Mapping[int, TypeDescription]) -> bool:
    """Whether the type is described, for good. The labels of enums change without a word in the stream."""
    return oid in types and not labels_of(oid, types)
