"""Alertmanager's API v2, so that amtool, Grafana's Alertmanager data source and karma work.

Under `/api/v2/…`, and under `/alertmanager/api/v2/…` for clients that cannot be told the path alone. Work under
the notifier's lock is done in a thread: the event loop never waits for it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import orjson

from gpuscope import __version__
from gpuscope.anchored_regex import compile_anchored
from gpuscope.clock import Clock
from gpuscope.limits import LIMITS_REACHED, Limits
from gpuscope.notify.alert_matchers import AlertMatcher
from gpuscope.notify.matcher_parser import parse_matcher
from gpuscope.notify.notifier import AlertStatus, Notifier
from gpuscope.notify.notify_counters import ALERTMANAGER_VERSION
from gpuscope.notify.silences import ACTIVE, EXPIRED, PENDING, Silence, SilenceError, SilenceNotFound
from gpuscope.server.api.alertmanager_json import (
    alert_json,
    group_json,
    read_alerts,
    read_silence,
    silence_json,
    time_text,
)
from gpuscope.server.api.go_values import parse_bool
from gpuscope.server.http.messages import BodyTooLarge, Request, Response
from gpuscope.server.http.routing import Route

JSON = "application/json"
MAX_FILTERS = 100
PREFIXES = ("/api/v2", "/alertmanager/api/v2")
_ORDER = {ACTIVE: 0, PENDING: 1, EXPIRED: 2}


class _BadRequest(Exception):
    pass


def _answer(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, JSON)


class AlertmanagerApi:
    def __init__(self, notifier: Notifier, clock: Clock, limits: Limits) -> None:
        self._notifier = notifier
        self._clock = clock
        self._limits = limits

    def routes(self) -> list[Route]:
        table: Sequence[tuple[str, str, Callable[[Request, bytes], Response]]] = (
            ("/status", "GET", self._status),
            ("/receivers", "GET", self._receivers),
            ("/alerts", "GET", self._alerts),
            ("/alerts", "POST", self._post_alerts),
            ("/alerts/groups", "GET", self._groups),
            ("/silences", "GET", self._silences),
            ("/silences", "POST", self._post_silence),
            ("/silence/{id}", "GET", self._silence),
            ("/silence/{id}", "DELETE", self._expire),
        )
        return [
            Route(prefix + path, self._in_thread(handle), ("GET", "HEAD") if method == "GET" else (method,))
            for prefix in PREFIXES
            for path, method, handle in table
        ]

    def _in_thread(self, handle: Callable[[Request, bytes], Response]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            body = b""
            if request.method == "POST":
                try:
                    body = await request.body.read(self._limits.max_alerts_request_bytes)
                except BodyTooLarge:
                    LIMITS_REACHED.count("max_alerts_request_bytes")
                    return _answer("the request is larger than max_alerts_request_bytes", 413)
            try:
                return await asyncio.to_thread(handle, request, body)
            except _BadRequest as error:
                return _answer(str(error).encode("utf-8", "replace").decode(), 400)

        return answer

    def _status(self, request: Request, body: bytes) -> Response:
        notifier = self._notifier
        version = {
            "branch": "gpuscope", "buildDate": "", "buildUser": "", "goVersion": "",
            "revision": f"gpuscope-{__version__}", "version": ALERTMANAGER_VERSION,
        }  # fmt: skip
        return _answer(
            {
                "cluster": {"status": "disabled", "name": "", "peers": []},
                "config": {"original": notifier.config.original},
                "uptime": time_text(notifier.started_at),
                "versionInfo": version,
            }
        )

    def _receivers(self, request: Request, body: bytes) -> Response:
        asked = _Asked(request)
        wanted = asked.matchers("receiver_matchers")
        return _answer(
            [
                {"name": one.name, "labels": dict(one.labels)}
                for one in self._notifier.config.receivers.values()
                if _match_filters(wanted, dict(one.labels))
            ]
        )

    def _alerts(self, request: Request, body: bytes) -> Response:
        keep = self._alert_filter(_Asked(request))
        return _answer([alert_json(one) for one in self._notifier.alert_statuses() if keep(one)])

    def _groups(self, request: Request, body: bytes) -> Response:
        asked = _Asked(request)
        keep, with_muted = self._alert_filter(asked), asked.switch("muted")
        receiver = asked.regex("receiver")
        found = []
        for group in self._notifier.group_statuses():
            if (receiver is not None and not receiver(group.receiver)) or (group.muted_by and not with_muted):
                continue
            alerts = [one for one in group.alerts if keep(one)]
            if alerts:
                found.append(group_json(group, alerts))
        return _answer(found)

    def _alert_filter(self, asked: _Asked) -> Callable[[AlertStatus], bool]:
        filters, receiver = asked.matchers("filter"), asked.regex("receiver")
        receiver_labels = asked.matchers("receiver_matchers")
        active, silenced, inhibited = (asked.switch(name) for name in ("active", "silenced", "inhibited"))
        asked.switch("unprocessed")  # there are none
        receivers = self._notifier.config.receivers

        def keep(status: AlertStatus) -> bool:
            if not _match_filters(filters, status.alert.labels):
                return False
            if receiver is not None and not any(map(receiver, status.receivers)):
                return False
            if receiver_labels and not any(
                _match_filters(receiver_labels, dict(receivers[name].labels)) for name in status.receivers
            ):
                return False
            return (
                (active or status.state != "active")
                and (silenced or not status.silenced_by)
                and (inhibited or not status.inhibited_by)
            )

        return keep

    def _post_alerts(self, request: Request, body: bytes) -> Response:
        try:
            posted = read_alerts(_load(body), self._clock.now(), self._limits)
        except ValueError as error:
            raise _BadRequest(error) from None
        refused = self._notifier.put(posted.valid)
        if posted.mistakes:
            self._notifier.count_invalid(len(posted.mistakes))
            raise _BadRequest("\n".join(posted.mistakes[:20]))
        if refused:
            return _answer(f"{refused} alerts were not taken: max_alerts is {self._limits.max_alerts}", 503)
        return Response(b"", 200, JSON)

    def _silences(self, request: Request, body: bytes) -> Response:
        asked = _Asked(request)
        filters, now = asked.matchers("filter"), self._clock.now()
        states = {state for state in _ORDER if asked.switch(state)}
        with self._notifier.lock:
            every = self._notifier.silences.all()
        found = [one for one in every if one.state(now) in states and _has_matchers(one, filters)]
        return _answer([silence_json(one, now) for one in sorted(found, key=lambda one: _order(one, now))])

    def _post_silence(self, request: Request, body: bytes) -> Response:
        now = self._clock.now()
        try:
            silence = read_silence(_load(body), now)
            with self._notifier.lock:
                silence_id = self._notifier.silences.set(silence, now)
        except SilenceNotFound as error:
            return _answer(str(error), 404)
        except (ValueError, SilenceError) as error:
            raise _BadRequest(error) from None
        return _answer({"silenceID": silence_id})

    def _silence(self, request: Request, body: bytes) -> Response:
        try:
            with self._notifier.lock:
                silence = self._notifier.silences.get(request.path.rpartition("/")[2])
        except SilenceNotFound:
            return _answer("silence not found", 404)
        return _answer(silence_json(silence, self._clock.now()))

    def _expire(self, request: Request, body: bytes) -> Response:
        try:
            with self._notifier.lock:
                self._notifier.silences.expire(request.path.rpartition("/")[2], self._clock.now())
        except SilenceNotFound:
            return _answer("silence not found", 404)
        except SilenceError as error:
            return _answer(str(error), 500)
        return Response(b"", 200, JSON)


def _load(body: bytes) -> object:
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        raise _BadRequest("the body is not JSON") from None
    return document


class _Asked:
    """The parameters of a request."""

    def __init__(self, request: Request) -> None:
        try:
            text = request.query.decode("ascii")
            self._values = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FILTERS)
        except ValueError:
            raise _BadRequest("the parameters cannot be decoded, or are too many") from None

    def switch(self, name: str) -> bool:
        """True unless it is given as false."""
        try:
            return parse_bool(self._values[name][-1]) if name in self._values else True
        except ValueError:
            raise _BadRequest(f"{name} in query must be of type boolean") from None

    def matchers(self, name: str) -> list[AlertMatcher]:
        try:
            return [parse_matcher(text) for text in self._values.get(name, ())]
        except ValueError as error:
            raise _BadRequest(error) from None

    def regex(self, name: str) -> Callable[[str], bool] | None:
        if name not in self._values:
            return None
        try:
            pattern = compile_anchored(self._values[name][-1])
        except ValueError as error:
            raise _BadRequest(f"failed to parse {name} param: {error}") from None
        return lambda text: pattern.fullmatch(text) is not None


def _match_filters(matchers: Sequence[AlertMatcher], labels: Mapping[str, str]) -> bool:
    """As for routes, but `a=""` matches only without the label, and `a!=""` only with it."""
    for matcher in matchers:
        if matcher.value == "" and (matcher.name in labels) is not matcher.is_equal:
            continue
        if not matcher.matches(labels):
            return False
    return True


def _has_matchers(silence: Silence, filters: Sequence[AlertMatcher]) -> bool:
    return all(matcher in silence.matchers for matcher in filters)


def _order(silence: Silence, now: float) -> tuple[int, float]:
    """Active ones that end first, pending ones that start first, expired ones that ended last."""
    state = silence.state(now)
    at = {ACTIVE: silence.ends_at, PENDING: silence.starts_at, EXPIRED: -silence.ends_at}[state]
    return _ORDER[state], at
