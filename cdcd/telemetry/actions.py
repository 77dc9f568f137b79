"""Actions of a daemon by HTTP: read tables, pause and resume reading, stop tables and let them come back.

The rule: an action needs a bearer token of the configuration; without a configured token there are no actions. Each
action is the same request as by `cdcd snapshot` or `cdcd tables`, made by the same function (`Ask`). An action runs in
its own thread, one at a time, so that a PostgreSQL that does not answer delays neither the stream nor the other pages.
"""

import asyncio
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Thread
from typing import Final

from cdcd.config.models import Config
from cdcd.core.errors import CdcdError, TransientError, out_of_files
from cdcd.core.facts import Observer, cut_short
from cdcd.core.facts.operation import HttpActionAsked, HttpActionRefused
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.snapshot.signals import RESUME_TABLES, STOP_TABLES, Signal
from cdcd.telemetry.access import bearer_token, is_cross_site
from cdcd.telemetry.http import HttpRequest, HttpRoute, Reply, Routes, json_reply


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that was written.

    Attributes:
        position: position of the request in the WAL.
        notices: sentences about differences between the request as written and as sent by the client.
    """

    position: Lsn
    notices: tuple[str, ...] = ()


Ask = Callable[[Config, Signal], Accepted]
"""Function that checks a request and writes it into the WAL. Raises CdcdError."""

ANSWER_S_MAX: Final = 15.0
"""Seconds that PostgreSQL may take for a request."""

REFUSED_S: Final = 10.0
"""Seconds between two events about requests that are refused."""

TABLES_MAX: Final = 20
NAME_MAX: Final = 200
"""Maximum number of tables, and of characters of a name, in an event about a request."""

REFUSED_HINT: Final = (
    "If you do not know this address, close the port for it: by http.host, a firewall or a NetworkPolicy."
)

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "start": ("tables", "where", "id"),
    STOP_TABLES: ("tables",),
    RESUME_TABLES: ("tables",),
}
"""The keys that the body of an action may have. The other actions have none."""

OFF: Final = (
    "Actions are off. Set http.token_file (or http.tokens_file) in the daemon's configuration, and send its content as "
    "`Authorization: Bearer …`."
)


def action_routes(current: Callable[[], Config], ask: Ask | None, observe: Observer | None = None) -> Routes:
    """Return the actions by their paths.

    Args:
        current: returns the configuration in effect.
        ask: carries out a request; None: the actions are off.
        observe: called with events about the requests and their clients.
    """
    actions = _Actions(current, ask, observe)
    return {
        "/v1/snapshots": HttpRoute(
            post=lambda asked: actions.carry_out("start", asked), refuse=actions.refuse
        ),
        "/v1/pause": HttpRoute(post=lambda asked: actions.carry_out("pause", asked), refuse=actions.refuse),
        "/v1/resume": HttpRoute(post=lambda asked: actions.carry_out("resume", asked), refuse=actions.refuse),
        "/v1/tables/stop": HttpRoute(
            post=lambda asked: actions.carry_out(STOP_TABLES, asked), refuse=actions.refuse
        ),
        "/v1/tables/resume": HttpRoute(
            post=lambda asked: actions.carry_out(RESUME_TABLES, asked), refuse=actions.refuse
        ),
    }


class _Actions:
    def __init__(self, current: Callable[[], Config], ask: Ask | None, observe: Observer | None) -> None:
        self._current = current
        self._ask = ask
        self._observe = observe
        self._busy = False
        self._refused = 0
        self._refused_at = -REFUSED_S

    def refuse(self, asked: HttpRequest) -> Reply | None:
        """Return the refusal of a request; None if it is allowed."""
        refusal = self._refusal(asked)
        if refusal is not None:
            self._refused += 1
            now = time.monotonic()
            if self._observe is not None and now - self._refused_at >= REFUSED_S:
                self._observe(
                    HttpActionRefused(
                        peer=asked.peer, status=refusal.status, refused=self._refused, hint=REFUSED_HINT
                    )
                )
                self._refused, self._refused_at = 0, now
        return refusal

    def _refusal(self, asked: HttpRequest) -> Reply | None:
        if is_cross_site(asked.headers):
            return problem(403, "A page of another site may not request actions.")
        tokens = self._current().http.action_tokens()
        if not tokens or self._ask is None:
            return problem(403, OFF)
        if _whose(asked, tokens) is not None:
            return None
        return problem(
            401,
            "The token is missing or wrong. Send `Authorization: Bearer` with the content of http.token_file, or with "
            "a token of http.tokens_file.",
            **{"WWW-Authenticate": 'Bearer realm="cdcd"'},
        )

    async def carry_out(self, action: str, asked: HttpRequest) -> Reply:
        """Make the request, and answer with its position in the WAL. The log names the client."""
        config = self._current()
        try:
            signal = _signal(action, config.name, asked.body)
        except ValueError as error:
            return problem(400, f"The request is refused: {error}.")
        reply = await self._carry_out(action, config, signal)
        if self._observe is not None:
            tables = [cut_short(name, NAME_MAX) for name in signal.tables[:TABLES_MAX]]
            self._observe(
                HttpActionAsked(
                    action=action,
                    peer=asked.peer,
                    name=_whose(asked, config.http.action_tokens()) or "",
                    tables=tables,
                    request=cut_short(signal.request, NAME_MAX),
                    status=reply.status,
                )
            )
        return reply

    async def _carry_out(self, action: str, config: Config, signal: Signal) -> Reply:
        ask = self._ask
        assert ask is not None, "refuse() was not asked"
        if self._busy:
            return problem(
                503, "Another request is under way. Try again in a few seconds.", **{"Retry-After": "5"}
            )
        self._busy = True
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                accepted = await self._in_thread(lambda: ask(config, signal))
        except TimeoutError:
            return problem(
                504, f"PostgreSQL did not answer within {ANSWER_S_MAX:.0f} s. The request may still arrive."
            )
        except TransientError as error:
            return problem(503, error.message, hint=error.hint)
        except CdcdError as error:
            return problem(409, error.message, hint=error.hint)
        answer = {"asked_lsn": str(accepted.position), "pipeline": config.name, "action": action}
        return json_reply(202, answer | ({"notices": accepted.notices} if accepted.notices else {}))

    async def _in_thread(self, work: Callable[[], Accepted]) -> Accepted:
        """Run `work` in a thread that does not delay the end of the process. Until it ends, no other action begins."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Accepted] = loop.create_future()

        def finish(result: Accepted | None, error: Exception | None) -> None:
            self._busy = False
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            elif result is not None:
                done.set_result(result)

        def run() -> None:
            result: Accepted | None = None
            failure: Exception | None = None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001  it is raised again where the result is awaited
                failure = out_of_files(error) or error
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, result, failure)

        Thread(target=run, name="http action", daemon=True).start()
        return await done


def _whose(asked: HttpRequest, tokens: list[tuple[str, bytes]]) -> str | None:
    """Return the name of the request's token; None if it has none of these tokens."""
    given = bearer_token(asked.headers)
    # Each token is compared, in constant time, so that the time of the answer says nothing about the tokens.
    names = [name for name, token in tokens if hmac.compare_digest(given, token)]
    return names[0] if names else None


def _signal(action: str, pipeline: str, body: bytes) -> Signal:
    """Return the request in the body; raise ValueError with the reason if the body is wrong."""
    try:
        fields = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise ValueError("the body is not a JSON object")  # noqa: TRY004  what was sent is wrong, not our call
    allowed = _KEYS.get(action, ())
    if unknown := sorted(fields.keys() - set(allowed)):
        shown = ", ".join(unknown)[:100]
        raise ValueError(f"{shown} is not a key of it; there are {', '.join(allowed) or 'none'}")
    return Signal.decode(json.dumps({**fields, "action": action, "pipeline": pipeline}).encode())


def problem(status: int, sentence: str, /, hint: str = "", **headers: str) -> Reply:
    """Return a refusal with a sentence and a hint."""
    return json_reply(status, {"error": sentence, "hint": hint}, **headers)
