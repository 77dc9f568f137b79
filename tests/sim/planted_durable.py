"""Bugs of the durable log. Each undoes one decision."""

from collections.abc import Iterator

from cdcd.adapters.durable.log import LogFiles
from cdcd.core.engine.logged import DurableLog, LoggedSession


class ConfirmsBeforeSync(LogFiles):
    """Tells how far PostgreSQL may be told as soon as it is written."""

    def sync(self) -> int:
        return self.end


class ConfirmsOpenTransactions(LogFiles):
    """Takes the place of each row for one between two transactions."""

    def append(self, frames: list[bytes], unix_us: int) -> None:
        super().append(frames, unix_us)
        self._boundaries.inside = False


class JoinsSessions(LogFiles):
    """Gives one engine all logged sessions, so that what overlaps, or was unfinished, comes twice."""

    def look(self) -> DurableLog:
        log = super().look()
        self.whole = log
        if len(log.sessions) < 2:
            return log
        first, last = log.sessions[0], log.sessions[-1]
        joined = LoggedSession(first.number, first.owner, first.begin, last.end)
        return DurableLog(log.folder, (joined,))

    def frames(self, session: LoggedSession) -> Iterator[list[bytes]]:
        for each in self.whole.sessions:
            yield from super().frames(each)


class RemovesBeforeDelivery(LogFiles):
    """Removes a logged session as soon as it is read."""

    def frames(self, session: LoggedSession) -> Iterator[list[bytes]]:
        frames = list(super().frames(session))
        self.remove((session.number,))
        return iter(frames)


class ForgetsTheTail(LogFiles):
    """Takes the end of a logged session's last segment from its head, as if nothing had come after it."""

    def look(self) -> DurableLog:
        log = super().look()
        heads = {segments[0].head.number: segments[-1].head.lsn for segments in self._by_session()}
        return DurableLog(
            log.folder,
            tuple(
                [
                    LoggedSession(each.number, each.owner, each.begin, heads[each.number], each.flaw)
                    for each in log.sessions
                ]
            ),
        )
