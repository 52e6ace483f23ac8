"""Builds the access policy of `up` and `server` from the settings.

A web configuration file with users or with required client certificates replaces our login. Otherwise the login
is required unless the server listens on loopback only, or if the settings ask for it. The users are stored in
the data folder, also when there is no store in it (`server --store`).
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, home_path
from gpuscope.serve.http.connection_limits import ConnectionLimit
from gpuscope.serve.login.access import AccessPolicy
from gpuscope.serve.login.access_rules import (
    LOOPBACK_HOSTS,
    WILDCARD_ADDRESSES,
    ClientRole,
    HostRule,
    parse_networks,
)
from gpuscope.serve.login.audit_log import AuditLog
from gpuscope.serve.login.authenticator import Authenticator
from gpuscope.serve.login.password_checks import LoginAttempts
from gpuscope.serve.login.user_file import FirstUserSetup, LoginSessions, UserFile
from gpuscope.serve.web_config import WebConfig, load_web_config

log = logging.getLogger("gpuscope")


@dataclass(frozen=True, slots=True)
class Web:
    access: AccessPolicy
    config: WebConfig
    external_url: str = ""

    def url(self, listen: tuple[str, int]) -> str:
        """The address to open in a browser."""
        return self.external_url or f"{'https' if self.config.tls else 'http'}://{address_text(listen)}"

    @property
    def is_open(self) -> bool:
        """Whether every user of this machine may change everything."""
        has_users = self.access.guard is not None or self.access.authenticator is not None
        return not has_users and not _requires_certificates(self.config)


def build_web(settings: Settings, listen: tuple[str, int]) -> Web:
    """Access policy and TLS of a server on `listen`. Logs how to create the first user if there is none."""
    host, _ = listen
    config = (
        load_web_config(Path(settings.web_config_file), settings) if settings.web_config_file else WebConfig()
    )
    proxies = parse_networks(settings.proxy_auth_from, "--proxy-auth-from")
    if settings.proxy_auth_header and not proxies:
        raise UsageError(
            f"--proxy-auth-header {settings.proxy_auth_header}: any client could send this header; "
            "name the proxy's addresses with --proxy-auth-from"
        )
    own_names = _own_names() if host in WILDCARD_ADDRESSES else ()
    external_host = urlsplit(settings.external_url).hostname or "localhost"
    hosts = HostRule.build(host, (*settings.allowed_hosts, external_host), own_names)
    clients = ConnectionLimit(settings)
    audit = AuditLog(
        home_path(settings.data, "data"),
        settings.audit_log_max_bytes,
        max_client_log_lines=settings.max_client_log_lines,
    )
    if config.guard is not None:
        role = ClientRole(settings.default_role)
        access = AccessPolicy(hosts, proxies, config.guard, role, clients=clients, audit=audit)
        return Web(access, config, settings.external_url)
    if not _needs_login(settings, host, config):
        access = AccessPolicy(hosts, proxies, clients=clients, audit=audit)
        return Web(access, config, settings.external_url)
    users = _users(settings)
    setup = FirstUserSetup(users)
    access = AccessPolicy(
        hosts,
        proxies,
        authenticator=_authenticator(settings, users),
        setup=setup,
        clients=clients,
        audit=audit,
    )
    web = Web(access, config, settings.external_url)
    if not users.names() and not settings.proxy_auth_header:
        _log_first_user_token(setup, web, listen)
    return web


def address_text(listen: tuple[str, int]) -> str:
    """Host and port to open in a browser; for a server on all addresses, with this machine's name.

    The name of a container is its id, or its pod's: nobody can open it. Its port is published on some machine,
    and `localhost` is right there; `--external-url` is right everywhere."""
    host, port = listen
    if host in WILDCARD_ADDRESSES:
        host = "localhost" if in_container() else socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def in_container(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> bool:
    """Of Docker, Podman or Kubernetes; not a system container like LXC, whose name is a machine's."""
    marks = (root / ".dockerenv", root / "run/.containerenv")
    return "KUBERNETES_SERVICE_HOST" in environment or any(mark.exists() for mark in marks)


def _needs_login(settings: Settings, host: str, config: WebConfig) -> bool:
    if settings.login == "always" or settings.proxy_auth_header:
        return True
    return host not in LOOPBACK_HOSTS and not _requires_certificates(config)


def _requires_certificates(config: WebConfig) -> bool:
    return config.tls is not None and config.tls.context.verify_mode is ssl.CERT_REQUIRED


def _users(settings: Settings) -> UserFile:
    return UserFile(home_path(settings.data, "data"))


def _authenticator(settings: Settings, users: UserFile) -> Authenticator:
    sessions = LoginSessions(home_path(settings.data, "data"), users, settings.session_lifetime)
    return Authenticator(
        users,
        sessions,
        LoginAttempts.from_limits(settings),
        settings.proxy_auth_header.lower(),
        ClientRole(settings.default_role),
    )


def _own_names() -> tuple[str, ...]:
    name = socket.gethostname()
    return name, name.partition(".")[0]


def _log_first_user_token(setup: FirstUserSetup, web: Web, listen: tuple[str, int]) -> None:
    is_guess = in_container() and not web.external_url and listen[0] in WILDCARD_ADDRESSES
    where = " on the machine that publishes this container's port (or set --external-url)" if is_guess else ""
    log.warning(
        "no user exists yet: open %s%s and create the first with this one-time token: %s "
        "(or run `gpuscope user add NAME`)",
        web.url(listen),
        where,
        setup.new_token(),
    )
