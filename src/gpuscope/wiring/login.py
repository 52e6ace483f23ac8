"""Builds the access policy of `up` and `server` from the settings.

A web configuration file with users or with required client certificates replaces our login. Otherwise the login
is required unless the server listens on loopback only, or if the settings ask for it. The users are stored in
the data folder, also when there is no store in it (`server --store`).
"""

from __future__ import annotations

import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from gpuscope.errors import UsageError
from gpuscope.server.http.connection_limit import ConnectionLimit
from gpuscope.server.login.access import AccessPolicy
from gpuscope.server.login.audit_log import AuditLog
from gpuscope.server.login.authenticator import Authenticator
from gpuscope.server.login.client_request import parse_networks
from gpuscope.server.login.first_user_setup import FirstUserSetup
from gpuscope.server.login.login_sessions import LoginSessions
from gpuscope.server.login.origin_rules import LOOPBACK_HOSTS, WILDCARD_ADDRESSES, HostRule
from gpuscope.server.login.password_checks import LoginAttempts
from gpuscope.server.login.roles import ClientRole
from gpuscope.server.login.user_file import UserFile
from gpuscope.server.web_config.config_file import WebConfig, load_web_config
from gpuscope.settings import Settings, home_path

log = logging.getLogger("gpuscope")


@dataclass(frozen=True, slots=True)
class Web:
    access: AccessPolicy
    config: WebConfig


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
    hosts = HostRule.build(host, settings.allowed_hosts, own_names)
    clients = ConnectionLimit(settings)
    audit = AuditLog(
        home_path(settings.data, "data"),
        settings.audit_log_max_bytes,
        max_client_log_lines=settings.max_client_log_lines,
    )
    if config.guard is not None:
        role = ClientRole(settings.default_role)
        return Web(AccessPolicy(hosts, proxies, config.guard, role, clients=clients, audit=audit), config)
    if not _needs_login(settings, host, config):
        return Web(AccessPolicy(hosts, proxies, clients=clients, audit=audit), config)
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
    if not users.names() and not settings.proxy_auth_header:
        _log_first_user_token(setup, f"{'https' if config.tls else 'http'}://{address_text(listen)}")
    return Web(access, config)


def address_text(listen: tuple[str, int]) -> str:
    """An address to open in a browser; for a server on all addresses, with this machine's name."""
    host, port = listen
    name = socket.gethostname() if host in WILDCARD_ADDRESSES else host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _needs_login(settings: Settings, host: str, config: WebConfig) -> bool:
    if settings.login == "always" or settings.proxy_auth_header:
        return True
    if config.tls is not None and config.tls.context.verify_mode is ssl.CERT_REQUIRED:
        return False
    return host not in LOOPBACK_HOSTS


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


def _log_first_user_token(setup: FirstUserSetup, address: str) -> None:
    log.warning(
        "no user exists yet: open %s and create the first with this one-time token: %s "
        "(or run `gpuscope user add NAME`)",
        address,
        setup.new_token(),
    )
