"""The keys of `retry`, wherever something is tried again."""

from pydantic import Field, model_validator

from cdcd.config.types import Section


class Backoff(Section):
    """How long to wait before the next attempt: doubled each time, with jitter."""

    initial_s: float = Field(
        0.5, ge=0.01, le=60, description="Wait before the second attempt; the first follows at once."
    )
    max_s: float = Field(
        30, ge=0.01, le=3600, description="Longest wait: how late an outage's end is noticed at worst."
    )

    @model_validator(mode="after")
    def _ordered(self) -> "Backoff":
        if self.max_s < self.initial_s:
            raise ValueError("max_s must not be below initial_s")
        return self
