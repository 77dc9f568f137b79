"""The keys of `security`: whether what weakens the pipeline's protection is a warning or ends the start."""

from pydantic import Field

from cdcd.config.types import Section


class SecurityConfig(Section):
    """Whether what weakens the pipeline's protection is a warning or ends the start."""

    strict: bool = Field(
        False,
        description="Whether `cdcd run` refuses to start where `cdcd check` finds a weakness: a file with a secret "
        "that other users can read or replace, a key or token that can be guessed. false: each weakness is a warning "
        "of `cdcd check`.",
    )
