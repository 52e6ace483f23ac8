"""Alertmanager's API v2, so that amtool, Grafana's Alertmanager data source and karma work.

Under `/api/v2/…`, and under `/alertmanager/api/v2/…` for clients that are configured with a path prefix. Work
under the notifier's lock is done in a few threads: the event loop never waits for it. Lists are encoded one by
one while they are sent, because 50,000 alerts as JSON have 100 MiB.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import orjson

from gpuscope import __version__
from gpuscope.base.clock import Clock
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.notify.alert_matchers import AlertMatcher
from gpuscope.judge.notify.alerting_config import AlertReceiver
from gpuscope.judge.notify.notification_log import ALERTMANAGER_VERSION
from gpuscope.judge.notify.notifier import AlertStatus, Notifier
from gpuscope.judge.notify.silences import (
    ACTIVE,
    EXPIRED,
    PENDING,
    Silence,
    SilenceError,
    SilenceNotFound,
    SilenceNotStored,
)
from gpuscope.serve.api.alertmanager_json import (
    alert_json,
    group_json,
    read_alerts,
    read_silence,
    silence_json,
    time_text,
)
from gpuscope.serve.api.alertmanager_requests import (
    InvalidRequest,
    RefusedRequest,
    RequestParameters,
    check_content_type,
    check_media_types,
    check_silence_id,
    load_body,
)
from gpuscope.serve.http.connection_limits import ClientLog
from gpuscope.serve.http.messages import BodyTooLarge, Handler, Header, Request, Response, Route
from gpuscope.serve.login.audit_log import AUDIT_DETAIL
from gpuscope.serve.login.routes import IDENTITY_KEY

log = logging.getLogger("gpuscope.notify")
JSON = "application/json"
MAX_THREADS = 2
"""Not those that other routes share: a list of many alerts takes a second."""
PIECE_BYTES = 1 << 18
OWN_PREFIX = "/alertmanager/api/v2"
PREFIXES = ("/api/v2", OWN_PREFIX)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_ORDER = {ACTIVE: 0, PENDING: 1, EXPIRED: 2}


def _answer(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, JSON)


def _pieces(documents: Iterable[object]) -> Iterator[bytes]:
    """A JSON list, some documents at a time."""
    piece, separator = bytearray(b"["), b""
    for document in documents:
        piece += separator + orjson.dumps(document)
        separator = b","
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece + b"]")


class AlertmanagerApi:
    def __init__(self, notifier: Notifier, clock: Clock, limits: Limits) -> None:
        self._notifier = notifier
        self._clock = clock
        self._limits = limits
        self._client_log = ClientLog(log, limits.max_client_log_lines)
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="gpuscope-alertmanager-api")

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
        allowed: dict[str, list[str]] = {}
        for path, method, _ in table:
            allowed.setdefault(path, []).append(method)
        return [
            *(
                Route(prefix + path, self._in_thread(handle), (method,))
                for prefix in PREFIXES
                for path, method, handle in table
            ),
            *(
                Route(
                    prefix + path,
                    _refuse_method(methods),
                    [method for method in METHODS if method not in methods],
                )
                for prefix in PREFIXES
                for path, methods in allowed.items()
            ),
            # Elsewhere an unknown path is answered as Prometheus answers it.
            Route(f"{OWN_PREFIX}/{{path...}}", _refuse_path, METHODS),
        ]

    def _in_thread(self, handle: Callable[[Request, bytes], Response]) -> Handler:
        async def answer(request: Request) -> Response:
            try:
                check_media_types(request)
                body = b""
                if request.method == "POST" and (body := await self._read(request)):
                    check_content_type(request)
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, handle, request, body)
            except RefusedRequest as error:
                return _refusal(error)
            except BodyTooLarge:
                LIMITS_REACHED.count("max_alerts_request_bytes")
                return _answer("the request is larger than max_alerts_request_bytes", 413)
            except InvalidRequest as error:
                return _answer(str(error).encode("utf-8", "replace").decode(), 400)

        return answer

    async def _read(self, request: Request) -> bytes:
        return await request.body.read(self._limits.max_alerts_request_bytes)

    def _list(self, documents: Iterable[object]) -> Response:
        """Encoded piece by piece, as fast as the client reads."""
        rest = _pieces(documents)
        first = next(rest)
        second = next(rest, None)
        if second is None:
            return Response(first, 200, JSON)

        async def pieces() -> AsyncIterator[bytes]:
            loop = asyncio.get_running_loop()
            yield first
            piece: bytes | None = second
            while piece is not None:
                yield piece
                piece = await loop.run_in_executor(self._threads, next, rest, None)

        return Response(b"", 200, JSON, pieces=pieces())

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
        wanted = RequestParameters(request).receiver_matchers()
        return _answer(
            [
                {"name": receiver.name, "labels": labels_of_receiver(receiver)}
                for receiver in self._notifier.config.receivers.values()
                if _match_filters(wanted, labels_of_receiver(receiver))
            ]
        )

    def _alerts(self, request: Request, body: bytes) -> Response:
        parameters = RequestParameters(request)
        keep, receiver_filters = self._alert_filter(parameters), self._receiver_filters(parameters)
        return self._list(
            alert_json(alert_statuse)
            for alert_statuse in self._notifier.alert_statuses()
            if keep(alert_statuse)
            and all(any(map(is_wanted, alert_statuse.receivers)) for is_wanted in receiver_filters)
        )

    def _groups(self, request: Request, body: bytes) -> Response:
        parameters = RequestParameters(request)
        keep, with_muted = self._alert_filter(parameters), parameters.switch("muted")
        receiver_filters = self._receiver_filters(parameters)
        groups = []
        receivers: defaultdict[str, list[str]] = defaultdict(list)
        for group in self._notifier.group_statuses():
            if not all(is_wanted(group.receiver) for is_wanted in receiver_filters):
                continue
            alerts = [alert for alert in group.alerts if keep(alert)]
            for alert in alerts:
                receivers[alert.alert.fingerprint].append(group.receiver)
            if alerts and (with_muted or not group.muted_by):
                groups.append((group, alerts))
        for names in receivers.values():
            names.sort()
        return self._list(
            group_json(
                group, [replace(alert, receivers=tuple(receivers[alert.alert.fingerprint])) for alert in alerts]
            )
            for group, alerts in groups
        )

    def _receiver_filters(self, parameters: RequestParameters) -> list[Callable[[str], bool]]:
        """What `receiver` and `receiver_matchers` ask of the name of a receiver."""
        filters: list[Callable[[str], bool]] = []
        if (name := parameters.regex("receiver")) is not None:
            filters.append(name)
        if matchers := parameters.receiver_matchers():
            labels = {
                receiver.name: labels_of_receiver(receiver)
                for receiver in self._notifier.config.receivers.values()
            }
            # A receiver is missing if the file was reloaded in between.
            filters.append(lambda receiver: receiver in labels and _match_filters(matchers, labels[receiver]))
        return filters

    def _alert_filter(self, parameters: RequestParameters) -> Callable[[AlertStatus], bool]:
        filters = parameters.filters()
        active, silenced, inhibited = (parameters.switch(name) for name in ("active", "silenced", "inhibited"))
        parameters.switch("unprocessed")  # there are none

        def keep(status: AlertStatus) -> bool:
            return (
                _match_filters(filters, status.alert.labels)
                and (active or status.state != "active")
                and (silenced or not status.silenced_by)
                and (inhibited or not status.inhibited_by)
            )

        return keep

    def _post_alerts(self, request: Request, body: bytes) -> Response:
        document = load_body(body, "alerts", self._limits)
        posted = read_alerts(document, self._clock.now(), self._limits, self._notifier.config.resolve_timeout)
        refused = self._notifier.put(posted.valid)
        if posted.mistakes:
            self._notifier.count_invalid(posted.invalid_count)
            raise InvalidRequest("\n".join(posted.mistakes))
        if refused:
            return _answer(f"{refused} alerts were not taken: max_alerts is {self._limits.max_alerts}", 503)
        return Response(b"", 200, JSON)

    def _silences(self, request: Request, body: bytes) -> Response:
        parameters = RequestParameters(request)
        filters, now = parameters.filters(), self._clock.now()
        states = {state for state in _ORDER if parameters.switch(state)}
        with self._notifier.lock:
            every = self._notifier.silences.all()
        silences = [
            silence for silence in every if silence.state(now) in states and _has_matchers(silence, filters)
        ]
        return self._list(
            silence_json(silence, now) for silence in sorted(silences, key=lambda silence: _order(silence, now))
        )

    def _post_silence(self, request: Request, body: bytes) -> Response:
        now = self._clock.now()
        try:
            silence = read_silence(load_body(body, "silence", self._limits), now)
            with self._notifier.lock:
                silence_id = self._notifier.silences.set(silence, now)
        except SilenceNotFound as error:
            return _answer(str(error), 404)
        except SilenceNotStored as error:
            return _answer(str(error), 503)
        except (ValueError, SilenceError) as error:
            raise InvalidRequest(error) from None
        word = "changed" if silence.id else "added"
        self._log_change(request, word, silence_id, f"{silence.created_by[:80]!r}, {silence.comment[:200]!r}")
        return _answer({"silenceID": silence_id})

    def _log_change(self, request: Request, word: str, silence_id: str, more: str = "") -> None:
        """Logs the authenticated user: the client chooses `createdBy`. The audit log has every change."""
        identity = request.state.get(IDENTITY_KEY)
        request.state[AUDIT_DETAIL] = f"silence {silence_id} {word}{': ' if more else ''}{more}"
        user = request.peer if identity is None else identity.user
        text = f": {more}" if more else ""
        self._client_log.info("silences changed", "silence %s %s by %s%s", silence_id, word, user, text)

    def _silence(self, request: Request, body: bytes) -> Response:
        silence_id = _silence_id(request)
        try:
            with self._notifier.lock:
                silence = self._notifier.silences.get(silence_id)
        except SilenceNotFound:
            return Response(b"", 404, JSON)
        return _answer(silence_json(silence, self._clock.now()))

    def _expire(self, request: Request, body: bytes) -> Response:
        silence_id = _silence_id(request)
        try:
            with self._notifier.lock:
                self._notifier.silences.expire(silence_id, self._clock.now())
        except SilenceNotFound:
            return Response(b"", 404, JSON)
        except SilenceNotStored as error:
            return _answer(str(error), 503)
        except SilenceError as error:
            return _answer(str(error), 500)
        self._log_change(request, "ended", silence_id)
        return Response(b"", 200, JSON)


def _silence_id(request: Request) -> str:
    silence_id = request.path.rpartition("/")[2]
    check_silence_id(silence_id)
    return silence_id


def _refusal(error: RefusedRequest, headers: tuple[Header, ...] = ()) -> Response:
    message = str(error).encode("utf-8", "replace").decode()
    return Response(orjson.dumps({"code": error.code, "message": message}), error.status, JSON, headers)


def _refuse_method(allowed: Sequence[str]) -> Handler:
    async def answer(request: Request) -> Response:
        why = f"method {request.method} is not allowed, but [{','.join(allowed)}] are"
        return _refusal(RefusedRequest(405, 405, why), (("allow", ", ".join(allowed)),))

    return answer


async def _refuse_path(request: Request) -> Response:
    return _refusal(RefusedRequest(404, 404, f"path {request.path} was not found"))


def labels_of_receiver(receiver: AlertReceiver) -> dict[str, str]:
    """Its labels in the file, and its name."""
    return {**dict(receiver.labels), "name": receiver.name}


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
