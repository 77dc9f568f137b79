"""Takes the answers to questions about tables, and places rows between two transactions.

The rule: a large row is converted in `next_action` only, because the shell calls it in a thread (`Engine.has_large`).
So an answer with a large row is kept until then, and with it all later answers, because their order counts.
"""

from cdcd.core.engine.actions import Answer, Differences, Published
from cdcd.core.engine.between_transactions import BetweenTransactions
from cdcd.core.engine.ending import Ending
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.ingest import STEP_BYTES
from cdcd.core.engine.questions import Questions
from cdcd.core.engine.requests import Requests
from cdcd.core.snapshot.reading import Rows


def _has_larger(answer: Answer, bytes_max: int) -> bool:
    """Return whether the answer has a row of more than `bytes_max` bytes."""
    if isinstance(answer, Rows):
        return answer.size > bytes_max and max(map(len, answer.lines)) > bytes_max
    if isinstance(answer, Differences):
        return any(len(line) > bytes_max for line in (*answer.updates, *answer.inserts))
    return False


class AnswerDispatch:
    """Passes each answer to the part that asked, at once or by `place_large`.

    Attributes:
        has_large: whether rows of tables with a large one may wait to be encoded.
    """

    def __init__(
        self,
        questions: Questions,
        requests: Requests,
        between: BetweenTransactions,
        ending: Ending,
        incremental: Incremental,
    ) -> None:
        self._questions = questions
        self._requests = requests
        self._between = between
        self._ending = ending
        self._incremental = incremental
        self.has_large = False
        self._kept: list[tuple[int, Answer]] = []
        """Answers with rows that `place_large` takes, because some of the rows may be large."""

    def stream_begun(self) -> None:
        """Note that the initial snapshot is read, so that its last rows were placed."""
        self.has_large = len(self._kept) > 0

    def pass_on(self, ticket: int, answer: Answer, now: float) -> None:
        """Take the answer to the question with this ticket, or keep it for `place_large`."""
        if self.has_large or _has_larger(answer, STEP_BYTES):
            self.has_large = True
            self._kept.append((ticket, answer))
        else:
            self._take(ticket, answer, now)

    def _take(self, ticket: int, answer: Answer, now: float) -> None:
        self._questions.dispatch(ticket, answer, now)
        if isinstance(answer, Published) and self._requests.is_pending:
            # A table that was created or renamed just before the request is known by now.
            self._requests.listed()
        self._ending.fail(self._questions.failure)
        self._between.reached(now)

    def place(self, now: float) -> None:
        """Place rows between two transactions, unless some of them may be large: `place_large` places these."""
        if not self.has_large:
            self._between.reached(now)

    def place_large(self, now: float, *, is_reading: bool) -> bool:
        """Take an answer that was kept, or else place rows between two transactions.

        Args:
            is_reading: the initial snapshot is being read.

        Returns:
            True if an answer was taken.
        """
        if self._kept:
            ticket, answer = self._kept.pop(0)
            self._take(ticket, answer, now)
            return True
        if self.has_large:
            self._between.reached(now)
            # The last rows of a table wait for the others until the stream begins.
            self.has_large = is_reading or self._incremental.waiting.bytes > 0
        return False
