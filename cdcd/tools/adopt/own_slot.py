"""Decides whether cdcd gets a slot of its own or takes the connector's slot."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdcd.tools.adopt.judging import (
    OptionFinding,
)
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind
from cdcd.tools.operations.first_files import name_for

_OTHER_PLUGINS: Final = ("decoderbufs", "wal2json")
"""What the names of plugins begin with whose slots cdcd cannot read."""


@dataclass(frozen=True, slots=True)
class OwnSlot:
    """A slot of cdcd's own, where cdcd cannot read the connector's.

    Attributes:
        name: of slot and publication.
        why: why cdcd cannot read the connector's slot; "": it can, and has no slot of its own.
        needs_publication: True: the connector's plugin knows no publications.
    """

    name: str
    why: str
    needs_publication: bool

    def judged(self, finding: OptionFinding, *, is_known: bool) -> OptionFinding:
        """The finding, as the slot of cdcd's own changes it.

        Args:
            is_known: the database was asked.
        """
        verdict = finding.verdict
        if self.why and finding.name == "slot.name":
            why = (
                f"postgres.slot: {self.name}. {self.why} After the takeover, drop the connector's slot when you do not "
                "go back, because it keeps WAL."
            )
            verdict = Verdict(VerdictKind.DIFFERENT, why, {"postgres.slot": self.name})
        elif self.needs_publication and finding.name == "publication.name":
            why = (
                f"postgres.publication: {self.name}, with the tables that the connector captures now. Add later tables "
                "to it."
            )
            verdict = Verdict(VerdictKind.DIFFERENT, why, {"postgres.publication": self.name})
        elif self.why and finding.name == ("plugin.name" if self.needs_publication else "slot.drop.on.stop"):
            verdict = self._verdict(is_known=is_known)
        return replace(finding, verdict=verdict)

    def _verdict(self, *, is_known: bool) -> Verdict:
        if not is_known:
            return Verdict(
                VerdictKind.UNKNOWN,
                f"{self.why} cdcd needs a slot of its own, which must be created while the connector runs. Run this "
                "where the database can be reached, without --offline.",
            )
        return Verdict(
            VerdictKind.DIFFERENT,
            f"{self.why} So --takeover creates slot {self.name} of pgoutput for cdcd while the connector runs, and "
            "stops the connector when it has passed the new slot's position. Changes after this position come twice.",
        )


def own_slot(findings: Sequence[OptionFinding], name: str) -> OwnSlot:
    values = {finding.name: finding.value.strip().lower() for finding in findings}
    plugin = values.get("plugin.name", "")
    if plugin.startswith(_OTHER_PLUGINS):
        return OwnSlot(
            name, f"Only the plugin {plugin} can read the connector's slot.", needs_publication=True
        )
    # A config provider may have the value. A slot of cdcd's own is right either way.
    if values.get("slot.drop.on.stop", "") not in {"", "false"}:
        return OwnSlot(name, "The connector drops its slot when it stops.", needs_publication=False)
    return OwnSlot(name, "", needs_publication=False)


def with_name(findings: Sequence[OptionFinding], prefix: str) -> list[OptionFinding]:
    """Add a finding that names the pipeline after the prefix of its topics, because the configuration has no name.

    Kafka Connect's API and Strimzi's resources have the name of a connector beside its configuration.
    """
    name = name_for(prefix)
    why = (
        f"The configuration has no name, so the pipeline is called {name}, after topic.prefix. --name sets another "
        "name."
    )
    return [
        OptionFinding(
            "name", "", is_default=True, verdict=Verdict(VerdictKind.DIFFERENT, why, {"name": name})
        ),
        *findings,
    ]
