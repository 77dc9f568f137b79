"""The keys of `money`: how its numbers are read."""

from pydantic import Field

from cdcd.config.types import Section
from cdcd.core.catalog.money import DIGITS_MAX


class MoneyConfig(Section):
    """The type money: PostgreSQL stores a whole number, and lc_monetary says which of its digits are a fraction."""

    digits: int | None = Field(
        None,
        ge=0,
        le=DIGITS_MAX,
        description="How many digits of money stand behind the point. null: as many as in the database's default of "
        "lc_monetary, which cdcd asks the server for when it connects: 0 for Japan, 2 for most, 3 for Kuwait. Set it "
        "where the amounts were written by sessions with another lc_monetary than that default.",
    )
