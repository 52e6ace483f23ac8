"""A server with a login, built as the wiring does, with a settable clock and cheap password hashes."""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuscope.base.limits import Limits
from gpuscope.serve.app import build_app
from gpuscope.serve.http.connection_limits import ClientLog
from gpuscope.serve.http.messages import Handler, Request, Response, Route, text
from gpuscope.serve.live.fleet_samples import FleetSamples
from gpuscope.serve.live.live_fleet import LiveFleet
from gpuscope.serve.login.access import AccessPolicy
from gpuscope.serve.login.access_rules import HostRule, parse_networks
from gpuscope.serve.login.audit_log import AuditLog
from gpuscope.serve.login.authenticator import Authenticator
from gpuscope.serve.login.password_checks import LoginAttempts, RateLimit
from gpuscope.serve.login.user_file import FirstUserSetup, LoginSessions, UserFile
from gpuscope.serve.page_routes import page_routes
from tests.server.client import Client

ANN, PASSWORD = "ann", "correct horse battery"
LIFETIME = 3600.0
CHEAP_ROUNDS = 4
HOST = "gpus.example"
ORIGIN = {"origin": f"http://{HOST}"}


class Clock:
    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def _no_samples() -> FleetSamples:
    return {}


async def _answer(request: Request) -> Response:
    return text("numbers")


async def _write(request: Request) -> Response:
    return Response(status=204)


def app_with(access: AccessPolicy) -> Handler:
    routes = [
        Route("/api/v1/query", _answer, ("GET", "POST")),
        Route("/api/v1/write", _write, ("POST",)),
        Route("/federate", _answer),
        Route("/api/v2/silences", _answer, ("GET", "POST")),
        Route("/api/v2/silence/{id}", _answer, ("GET", "DELETE")),
        Route("/alertmanager/api/v2/silences", _answer, ("GET", "POST")),
        Route("/api/v2/alerts", _answer, ("GET", "POST")),
        Route("/api/notify/test", _answer, ("POST",)),
        Route("/api/v1/admin/tsdb/snapshot", _answer, ("POST", "PUT")),
        *page_routes(LiveFleet(_no_samples, "test")),
    ]
    return build_app(routes, own_metrics=lambda: b"own 1\n", access=access)


class Site:
    """One server with its data folder; `client()` returns a client at an address."""

    def __init__(
        self, folder: Path, *, proxies: Sequence[str] = (), proxy_header: str = "", with_login: bool = True
    ) -> None:
        self.folder = folder
        self.clock = Clock()
        self.users = UserFile(folder, rounds=CHEAP_ROUNDS, clock=self.clock)
        self.sessions = LoginSessions(folder, self.users, LIFETIME, self.clock)
        self.setup = FirstUserSetup(self.users)
        self.by_address = RateLimit(free_attempts=5, max_wait_seconds=900, clock=self.clock)
        self.by_user = RateLimit(free_attempts=10, max_wait_seconds=60, clock=self.clock)
        client_log = ClientLog(logging.getLogger("gpuscope"), 10, self.clock)
        self.attempts = LoginAttempts(Limits(), self.by_address, self.by_user, client_log)
        authenticator = Authenticator(self.users, self.sessions, self.attempts, proxy_header.lower())
        hosts = HostRule.build("0.0.0.0", [HOST])
        networks = parse_networks(proxies, "--proxy-auth-from")
        access = AccessPolicy(hosts, networks, audit=AuditLog(folder, 1 << 20, self.clock))
        if with_login:
            access = replace(access, authenticator=authenticator, setup=self.setup)
        self.access = access
        self.app = app_with(access)

    def client(self, address: str = "10.0.0.5", scheme: str = "http") -> Client:
        return Client(self.app, f"{scheme}://{HOST}", address)

    def logged_in(self, scheme: str = "http") -> Client:
        client = self.client(scheme=scheme)
        assert log_in(client).status_code == 200
        return client


def basic(user: str = ANN, password: str = PASSWORD) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def log_in(client: Client, user: str = ANN, password: str = PASSWORD, **more: str) -> Any:
    return client.post("/api/login", json={"user": user, "password": password, **more})
