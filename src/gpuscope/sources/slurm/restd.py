"""Reads Slurm through slurmrestd, over its UNIX socket or HTTP with a JWT.

For containers, which have none of Slurm's clients. The newest API that answers is used. slurmrestd sends about
12 KB for each job, so on large clusters the commands are the better way. Shares need API v0.0.40 (23.11).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpuscope.errors import SourceError, UsageError
from gpuscope.readings.slurm import HOLDS_RESOURCES
from gpuscope.sources.slurm import restd_json
from gpuscope.sources.slurm.http_client import HttpClient
from gpuscope.sources.slurm.slurm_source import Query, gres_by_node
from gpuscope.sources.slurm.versions import REST_API

log = logging.getLogger("gpuscope.source")

Parts = Mapping[str, Any]
SHARES_SINCE = "v0.0.40"
T = TypeVar("T")
_NOT_FOUND = 404


def rest_headers(token_file: str, user: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The JWT from the file or from SLURM_JWT; none for a socket that identifies its user by itself."""
    token = environment.get("SLURM_JWT", "")
    if token_file:
        try:
            token = Path(token_file).read_text("utf-8").strip().removeprefix("SLURM_JWT=")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--slurm-rest-token-file: {token_file}: {error}") from None
    headers = {"X-SLURM-USER-TOKEN": token} if token else {}
    return {**headers, "X-SLURM-USER-NAME": user} if user else headers


class SlurmRest:
    """The backend `restd`."""

    mode = "restd"
    private_data = ""  # slurmrestd does not say

    def __init__(
        self,
        address: str,
        timeout_seconds: float,
        *,
        token_file: str = "",
        user: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._token_file, self._user = token_file, user
        self._address, self._timeout = address, timeout_seconds
        self._now = now
        self._api = ""
        self._cut_off_logged = False
        self._connect()
        self.queries = (
            Query("jobs", ("jobs", "placements"), self._jobs),
            Query("nodes", ("nodes",), self._nodes),
            Query("diag", ("scheduler",), self._scheduler),
            Query("reservations", ("reservations",), self._reservations, slow=True),
            Query("licenses", ("licenses",), self._licenses, slow=True),
            Query("shares", ("shares",), self._shares, slow=True),
        )

    def _connect(self) -> None:
        headers = rest_headers(self._token_file, self._user, os.environ)
        self._http = HttpClient(self._address, "--slurm-rest", self._timeout, headers)

    def ping(self) -> str:
        self._connect()  # a token file may have been renewed
        if not self._api:
            self._api = self._find_api()
        document = self._get("ping")
        pings = [one for one in document.get("pings", ()) if isinstance(one, Mapping)]
        if pings and not any(_answers(one) for one in pings):
            hosts = ", ".join(str(one.get("hostname", "?")) for one in pings)
            raise SourceError(f"slurmctld is down ({hosts}); systemctl status slurmctld there")
        return _release(document)

    def close(self) -> None:
        pass

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

    def _get(self, path: str) -> dict[str, Any]:
        try:
            document = json.loads(self._http.get(f"/slurm/{self._api}/{path}"))
        except ValueError:
            raise SourceError(f"slurmrestd's answer for {path} is not JSON, or was cut off") from None
        if not isinstance(document, dict):
            raise SourceError(f"slurmrestd's answer for {path} is not an object")
        errors = document.get("errors")
        if errors:
            raise SourceError(f"slurmrestd could not answer {path}: {_complaint(errors)}")
        return document

    def _rows(self, path: str, key: str) -> list[Mapping[str, Any]]:
        rows = self._get(path).get(key)
        if isinstance(rows, Mapping):  # shares are one level deeper
            rows = rows.get(key)
        if not isinstance(rows, list):
            raise SourceError(f"slurmrestd's answer for {path} has no list of {key}")
        return [row for row in rows if isinstance(row, Mapping)]

    def _jobs(self, parts: Parts) -> Parts:
        jobs, placements, cut_off = [], {}, False
        for row in self._rows("jobs", "jobs"):
            job = restd_json.to_job(row)
            if job is None:
                continue
            jobs.append(job)
            cut_off = cut_off or job.array_task.endswith("...")
            if job.state in HOLDS_RESOURCES:
                placements[job.job_id] = restd_json.to_placements(row)
        if cut_off and not self._cut_off_logged:
            log.warning(
                "source slurm: slurmrestd cuts the task lists of arrays off, so some pending tasks are not "
                "counted; set SLURM_BITSTR_LEN=0 in the environment of slurmrestd"
            )
            self._cut_off_logged = True
        return {"jobs": tuple(jobs), "placements": placements}

    def _nodes(self, parts: Parts) -> Parts:
        return {"nodes": _known(restd_json.to_node(row) for row in self._rows("nodes", "nodes"))}

    def _scheduler(self, parts: Parts) -> Parts:
        statistics = self._get("diag").get("statistics")
        if not isinstance(statistics, Mapping):
            raise SourceError("slurmrestd's answer for diag has no statistics")
        return {"scheduler": restd_json.to_scheduler(statistics)}

    def _reservations(self, parts: Parts) -> Parts:
        rows = self._rows("reservations", "reservations")
        gres, now = gres_by_node(parts), self._now()
        return {"reservations": tuple(restd_json.to_reservation(row, gres, now) for row in rows)}

    def _licenses(self, parts: Parts) -> Parts:
        return {"licenses": _known(restd_json.to_license(row) for row in self._rows("licenses", "licenses"))}

    def _shares(self, parts: Parts) -> Parts:
        if self._api < SHARES_SINCE:
            return {}
        return {"shares": tuple(restd_json.to_share(row) for row in self._rows("shares", "shares"))}


def _known(rows: Any) -> tuple[Any, ...]:
    return tuple(row for row in rows if row is not None)


def _answers(ping: Mapping[str, Any]) -> bool:
    if isinstance(ping.get("responding"), bool):
        return bool(ping["responding"])
    return ping.get("pinged", ping.get("ping")) in ("UP", 0)


def _release(document: Mapping[str, Any]) -> str:
    meta = document.get("meta")
    slurm = (meta.get("slurm") or meta.get("Slurm")) if isinstance(meta, Mapping) else None
    release = slurm.get("release") if isinstance(slurm, Mapping) else None
    return release if isinstance(release, str) else ""


def _complaint(errors: object) -> str:
    first = errors[0] if isinstance(errors, list) else errors
    if isinstance(first, Mapping):
        first = first.get("description") or first.get("error")
    return " ".join(str(first).split())[:200]
