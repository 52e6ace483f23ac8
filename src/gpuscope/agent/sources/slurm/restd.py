"""Reads Slurm through slurmrestd, over its UNIX socket or HTTP with a JWT.

For containers, which have none of Slurm's clients. The newest API that answers is used. slurmrestd sends about
12 KB for each job, so on large clusters the commands are cheaper. Shares need API v0.0.40 (23.11).
"""

from __future__ import annotations

import base64
import codecs
import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from gpuscope.agent.sources.slurm import restd_json
from gpuscope.agent.sources.slurm.gres import MAX_PLACEMENTS
from gpuscope.agent.sources.slurm.http_client import HttpClient, complaint
from gpuscope.agent.sources.slurm.plan import MAX_REST_BYTES
from gpuscope.agent.sources.slurm.restd_json import number
from gpuscope.agent.sources.slurm.slurm_source import Query, nodes_by_name
from gpuscope.agent.sources.slurm.values import REST_API, SlurmError
from gpuscope.base.errors import SourceError, UnusableAnswer, UsageError
from gpuscope.base.files import MAX_SECRET_BYTES, read_regular_text
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.slurm import HOLDS_RESOURCES, JobPlacement, SlurmFailure, SlurmJob

# Reads slurmrestd's JSON row by row, so that a large answer takes little memory and does not hold the GIL.
#
# Input: the body of an answer, one object with a list of rows such as `jobs`. Output: the rows, each handed
# on as soon as it is decoded, and the other members of the object. ValueError: not JSON, nested too deep, or
# a row or member beyond MAX_VALUE_CHARACTERS; an answer that is all one value is therefore never decoded.

MAX_VALUE_CHARACTERS: Final = 1 << 20  # a job has 12 KB; some have a long list of nodes or array tasks
MAX_ROWS: Final = 200_000
_PIECE_BYTES: Final = 1 << 18
_SPACES: Final = re.compile(r"[ \t\r\n]*")
_SHORT_VALUE: Final = 16
"""A number at the end of the text may go on in the next piece."""


class _Text:
    """The answer as text, of which only the part that is being decoded is in memory."""

    def __init__(self, body: bytes) -> None:
        self._body, self._next = body, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder()
        self._text, self._at = "", 0

    def peek(self) -> str:
        """The next character that is not a space; empty at the end."""
        while True:
            match = _SPACES.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text) or not self._read_more():
                return self._text[self._at : self._at + 1]

    def expect(self, characters: str) -> str:
        found = self.peek()
        if not found or found not in characters:
            raise ValueError(f"one of {characters} expected")
        self._at += 1
        return found

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
                if end + _SHORT_VALUE < len(self._text) or not self._read_more():
                    self._at = end
                    return value
            except ValueError:
                if not self._read_more():
                    raise

    def _read_more(self) -> bool:
        """Appends as much as is there already, at least a piece; False at the end of the answer."""
        if self._next >= len(self._body):
            return False
        rest = self._text[self._at :]
        if len(rest) > MAX_VALUE_CHARACTERS:
            raise ValueError(f"a value of more than {MAX_VALUE_CHARACTERS} characters")
        end = self._next + max(_PIECE_BYTES, len(rest))
        piece = self._body[self._next : end]
        self._next = end
        self._text, self._at = rest + self._decoder.decode(piece, end >= len(self._body)), 0
        return True


def read_rows(body: bytes, key: str, take: Callable[[Any], None]) -> dict[str, Any]:
    """Calls `take` with each element of the list `key`; an object `key` has the list (shares).

    Returns the other members. The list itself is True in the result, so that a missing one can be told.
    """
    text = _Text(body)
    if text.peek() != "{":
        raise ValueError("it is not an object")
    try:
        members = _read_object(text, key, take)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if text.peek():
        raise ValueError("more text after the object")
    return members


def _read_object(text: _Text, key: str, take: Callable[[Any], None]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    text.expect("{")
    if text.peek() == "}":
        text.expect("}")
        return members
    while True:
        name = text.value()
        text.expect(":")
        following = text.peek()
        if name == key and following == "[":
            _read_list(text, take)
            members[key] = True
        elif name == key and following == "{":
            members.update(_read_object(text, key, take))
        else:
            members[str(name)] = text.value()
        if text.expect(",}") == "}":
            return members


def _read_list(text: _Text, take: Callable[[Any], None]) -> None:
    text.expect("[")
    if text.peek() == "]":
        text.expect("]")
        return
    for _ in range(MAX_ROWS):
        take(text.value())
        if text.expect(",]") == "]":
            return
    raise ValueError(f"more than {MAX_ROWS} rows")


log = logging.getLogger("gpuscope.source")

Parts = Mapping[str, Any]
SHARES_SINCE = "v0.0.40"
T = TypeVar("T")
_UNAUTHORIZED = 401
_NOT_FOUND = 404
_JWT_HEADER = "X-SLURM-USER-TOKEN"


def rest_headers(token_file: str, user: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The JWT from the file or from SLURM_JWT; none for a socket that identifies its user by itself."""
    token = environment.get("SLURM_JWT", "")
    if token_file:
        try:
            token = read_regular_text(Path(token_file), MAX_SECRET_BYTES).strip().removeprefix("SLURM_JWT=")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--slurm-rest-token-file: {token_file}: {error}") from None
    headers = {_JWT_HEADER: token} if token else {}
    name = user or _user_of(token)  # up to 22.05 slurmrestd refuses a token without it
    return {**headers, "X-SLURM-USER-NAME": name} if name else headers


def _claims(token: str) -> dict[str, Any]:
    """What is written in a JWT. It is slurmrestd that verifies it."""
    try:
        payload = token.split(".")[1].encode()
        claims = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    except (ValueError, LookupError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _user_of(token: str) -> str:
    """The user that `scontrol token` wrote into it; empty if there is none."""
    name = _claims(token).get("sun")
    return name if isinstance(name, str) and name.isascii() and name.isprintable() else ""


class SlurmRest:
    """The backend `restd`."""

    mode = "restd"

    def __init__(
        self,
        address: str,
        timeout_seconds: float,
        *,
        token_file: str = "",
        user: str = "",
        max_body_bytes: int = MAX_REST_BYTES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._token_file, self._user = token_file, user
        self._address, self._timeout = address, timeout_seconds
        self._max_body_bytes = max_body_bytes
        self._now = now
        self._api = ""
        self._cut_off_logged = False
        self._connect()
        self.queries = (
            Query("diag", ("scheduler",), self._scheduler),  # first: it counts the jobs that are then listed
            Query("jobs", ("jobs", "placements"), self._jobs),
            Query("nodes", ("nodes",), self._nodes),
            Query("reservations", ("reservations",), self._reservations, slow=True),
            Query("licenses", ("licenses",), self._licenses, slow=True),
            Query("shares", ("shares",), self._shares, slow=True),
        )

    def _connect(self) -> None:
        headers = rest_headers(self._token_file, self._user, os.environ)
        self._has_token = _JWT_HEADER in headers
        self._expires_at = number(_claims(headers.get(_JWT_HEADER, "")).get("exp"))
        self._http = HttpClient(
            self._address, "--slurm-rest", self._timeout, headers, max_body_bytes=self._max_body_bytes
        )

    def ping(self) -> str:
        self._connect()  # a token file may have been renewed
        try:
            document = self._ping_known_api() if self._api else None
            if document is None:
                self._api = self._find_api()
                document = self._get("ping")
        except SourceError as error:
            if error.code == -1:  # no answer
                raise
            failure = SlurmFailure.TOKEN_REFUSED if error.code == _UNAUTHORIZED else SlurmFailure.OTHER
            raise self._expired_or(str(error), failure, error.code) from None
        pings = [ping for ping in document.get("pings", ()) if isinstance(ping, Mapping)]
        if pings and not any(_answers(ping) for ping in pings):
            hosts = ", ".join(str(ping.get("hostname", "?")) for ping in pings)
            refused = ", or it refuses the JWT" if self._has_token else ""
            why = f"slurmctld is down ({hosts}){refused}; systemctl status slurmctld there"
            failure = SlurmFailure.DOWN_OR_TOKEN_REFUSED if self._has_token else SlurmFailure.OTHER
            raise self._expired_or(why, failure)
        return _release(document)

    def _expired_or(self, why: str, failure: SlurmFailure, code: int = -1) -> SlurmError:
        """What is wrong if the token has not expired: slurmrestd does not say that it has.

        22.05 answers that it cannot load its configuration, 24.11 that slurmctld is down.
        """
        if self._expires_at is ABSENT or self._now() < self._expires_at:
            return SlurmError(why, failure, code)
        expired = f"the JWT for slurmrestd expired {self._now() - self._expires_at:.0f} s ago ({why})"
        return SlurmError(expired, SlurmFailure.TOKEN_REFUSED, code)

    def close(self) -> None:
        pass

    def _ping_known_api(self) -> dict[str, Any] | None:
        """None if slurmrestd does not have this API any more: it was upgraded."""
        try:
            return self._get("ping")
        except SourceError as error:
            if error.code == _NOT_FOUND:
                return None
            raise

    def _find_api(self) -> str:
        for _, api in REST_API:
            try:
                self._http.get(f"/slurm/{api}/ping")
            except SourceError as error:
                if error.code == _NOT_FOUND:
                    continue
                raise
            return api
        oldest = REST_API[-1][1]
        raise SourceError(
            f"{self._address} has no API between {oldest} and {REST_API[0][1]}: is it slurmrestd?"
        )

    def _get(self, path: str, take: Callable[[Any], None] | None = None) -> dict[str, Any]:
        """The members of the answer; `take` gets the rows of the list that is called as the path."""
        body = self._http.get(f"/slurm/{self._api}/{path}")
        try:
            document = read_rows(body, path if take else "", take or _ignore)
        except ValueError as error:
            why = f"slurmrestd's answer for {path} cannot be read, or was cut off: {error}"
            raise UnusableAnswer(why) from None
        errors = document.get("errors")
        if errors:
            raise SourceError(f"slurmrestd could not answer {path}: {complaint(errors)}")
        return document

    def _for_each(self, path: str, take: Callable[[Mapping[str, Any]], None]) -> None:
        def take_object(row: Any) -> None:
            if isinstance(row, Mapping):
                take(row)

        if self._get(path, take_object).get(path) is not True:
            raise UnusableAnswer(f"slurmrestd's answer for {path} has no list of {path}")

    def _rows(self, path: str, convert: Callable[[Mapping[str, Any]], T | None]) -> tuple[T, ...]:
        found: list[T] = []

        def take(row: Mapping[str, Any]) -> None:
            value = convert(row)
            if value is not None:
                found.append(value)

        self._for_each(path, take)
        return tuple(found)

    def _jobs(self, parts: Parts) -> Parts:
        jobs: list[SlurmJob] = []
        placements: dict[int, tuple[JobPlacement, ...]] = {}
        left = MAX_PLACEMENTS

        def take(row: Mapping[str, Any]) -> None:
            nonlocal left
            job = restd_json.to_job(row)
            if job is None:
                return
            jobs.append(job)
            if job.state in HOLDS_RESOURCES:
                placements[job.job_id] = restd_json.to_placements(row, left)
                left -= len(placements[job.job_id])

        self._for_each("jobs", take)
        if any("..." in job.array_task for job in jobs) and not self._cut_off_logged:
            log.warning(
                "source slurm: slurmrestd cuts the task lists of arrays off, so some pending tasks are not "
                "counted; set SLURM_BITSTR_LEN=0 in the environment of slurmrestd"
            )
            self._cut_off_logged = True
        return {"jobs": tuple(jobs), "placements": placements}

    def _nodes(self, parts: Parts) -> Parts:
        return {"nodes": self._rows("nodes", restd_json.to_node)}

    def _scheduler(self, parts: Parts) -> Parts:
        statistics = self._get("diag").get("statistics")
        if not isinstance(statistics, Mapping):
            raise UnusableAnswer("slurmrestd's answer for diag has no statistics")
        return {"scheduler": restd_json.to_scheduler(statistics)}

    def _reservations(self, parts: Parts) -> Parts:
        nodes, now = nodes_by_name(parts), self._now()
        found = self._rows("reservations", lambda row: restd_json.to_reservation(row, nodes, now))
        return {"reservations": found}

    def _licenses(self, parts: Parts) -> Parts:
        return {"licenses": self._rows("licenses", restd_json.to_license)}

    def _shares(self, parts: Parts) -> Parts:
        if self._api < SHARES_SINCE:
            return {}
        return {"shares": self._rows("shares", restd_json.to_share)}


def _ignore(row: Any) -> None:
    pass


def _answers(ping: Mapping[str, Any]) -> bool:
    if isinstance(ping.get("responding"), bool):
        return bool(ping["responding"])
    return ping.get("pinged", ping.get("ping")) in ("UP", 0)


def _release(document: Mapping[str, Any]) -> str:
    meta = document.get("meta")
    slurm = (meta.get("slurm") or meta.get("Slurm")) if isinstance(meta, Mapping) else None
    release = slurm.get("release") if isinstance(slurm, Mapping) else None
    return release if isinstance(release, str) else ""
