"""Converts types of extensions that do not stay text: hstore, those of pgvector, those of PostGIS."""

import re
from typing import ClassVar, Literal

from cdcd.core.catalog.binary import hstore_text
from cdcd.core.catalog.wiretext import wire
from cdcd.core.records.debezium_json import literals
from cdcd.core.records.debezium_json.converter import Converter, Number, base64_json, float_json
from cdcd.core.records.debezium_json.strings import quote


class Hstore(Converter):
    """Converts hstore (`"a"=>"1", "b"=>NULL`) to an object inside a string, as Debezium does with
    `hstore.handling.mode=json`.
    """

    def binary(self, data: bytes) -> str:
        return self.json(hstore_text(data))

    def json(self, text: str) -> str:
        return quote(literals.hstore_json(text))

    def unchanged(self, placeholder: str) -> str:
        name = quote(wire(placeholder))
        return quote(f"{{{name}:{name}}}")


class Vector(Number):
    """Converts pgvector's vector and halfvec (`[1,2.5]`)."""

    def json(self, text: str) -> str:
        if not (text.startswith("[") and text.endswith("]")):
            raise ValueError("malformed vector")
        return f"[{','.join([float_json(number) for number in text[1:-1].split(',')])}]"

    def unchanged(self, placeholder: str) -> str:
        return f"[{','.join([f'{byte}.0' for byte in self.unchanged_element(placeholder)])}]"


class SparseVector(Converter):
    """Converts pgvector's sparsevec (`{1:1.5,3:2}/5`)."""

    _FORM: ClassVar[re.Pattern[str]] = re.compile(r"\{([^{}]*)\}/(\d+)", re.ASCII)

    def json(self, text: str) -> str:
        match = self._FORM.fullmatch(text)
        if match is None:
            raise ValueError("malformed sparse vector")
        entries = [entry.partition(":") for entry in match[1].split(",") if entry]
        pairs = [f"[{int(index)},{float_json(number)}]" for index, _, number in entries]
        return f'{{"dimensions":{match[2]},"vector":[{",".join(pairs)}]}}'


class Geometry(Converter):
    """Converts PostGIS's geometry and geography: hexadecimal EWKB, which has an SRID if bit 29 of its type is set."""

    def json(self, text: str) -> str:
        data = bytes.fromhex(text)
        order: Literal["little", "big"] = "little" if data[:1] == b"\x01" else "big"
        srid = "null"
        if int.from_bytes(data[1:5], order) & 0x20000000:
            srid = str(int.from_bytes(data[5:9], order, signed=True))
        return f'{{"wkb":{base64_json(data)},"srid":{srid}}}'
