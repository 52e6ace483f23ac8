"""The `global` part of an `alertmanager.yml`: defaults for receivers, HTTP and TLS options.

Keys for kinds of receivers that we do not send are read and have no effect: a receiver that needed them is
refused where it stands. Unsupported HTTP options (a proxy, OAuth 2) are refused, because the message would be
sent differently than configured.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import UNSUPPORTED, HttpConfig, read_http_config
from gpuscope.judge.notify.secret_text import NO_SECRET, SECRET, SecretText

NO_EFFECT = (
    "jira_api_url", "opsgenie_api_url", "opsgenie_api_key", "opsgenie_api_key_file", "wechat_api_url",
    "wechat_api_secret", "wechat_api_secret_file", "wechat_api_corp_id", "victorops_api_url",
    "victorops_api_key", "victorops_api_key_file", "webex_api_url", "rocketchat_api_url", "rocketchat_token",
    "rocketchat_token_file", "rocketchat_token_id", "rocketchat_token_id_file", "mattermost_webhook_url",
    "mattermost_webhook_url_file",
)  # fmt: skip
HARMLESS_HTTP = ("enable_http2",)
DEFAULT_RESOLVE_TIMEOUT = 300.0
PLAIN_HTTP = HttpConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalOptions:
    resolve_timeout: float = DEFAULT_RESOLVE_TIMEOUT
    http: HttpConfig = PLAIN_HTTP
    smtp_from: str = ""
    smtp_hello: str = "localhost"
    smtp_smarthost: tuple[str, int] | None = None
    smtp_auth_username: str = ""
    smtp_auth_password: SecretText = NO_SECRET
    smtp_auth_secret: SecretText = NO_SECRET
    smtp_auth_identity: str = ""
    smtp_require_tls: bool = True
    smtp_tls: tuple[ssl.SSLContext, str] | None = field(default=None, repr=False)
    smtp_force_implicit_tls: bool | None = None
    slack_api_url: SecretText = NO_SECRET
    slack_app_token: SecretText = NO_SECRET
    slack_app_url: str = "https://slack.com/api/chat.postMessage"
    pagerduty_url: str = "https://events.pagerduty.com/v2/enqueue"
    telegram_api_url: str = "https://api.telegram.org"
    telegram_bot_token: SecretText = NO_SECRET


def read_global_options(table: ConfigMapping) -> GlobalOptions:
    _check_unused(table)
    defaults = GlobalOptions()
    has_implicit = table.has("smtp_force_implicit_tls")
    implicit = table.switch("smtp_force_implicit_tls", False)
    options = GlobalOptions(
        resolve_timeout=table.duration("resolve_timeout", DEFAULT_RESOLVE_TIMEOUT),
        http=read_notify_http(table, defaults),
        smtp_from=table.text("smtp_from"),
        smtp_hello=table.text("smtp_hello", "localhost"),
        smtp_smarthost=read_host_port(table, "smtp_smarthost"),
        smtp_auth_username=table.text("smtp_auth_username"),
        smtp_auth_password=read_secret(table, "smtp_auth_password"),
        smtp_auth_secret=read_secret(table, "smtp_auth_secret"),
        smtp_auth_identity=table.text("smtp_auth_identity"),
        smtp_require_tls=table.switch("smtp_require_tls", True),
        smtp_tls=read_notify_tls(table, "smtp_tls_config"),
        smtp_force_implicit_tls=implicit if has_implicit else None,
        slack_api_url=read_secret_url(table, "slack_api_url"),
        slack_app_token=read_secret(table, "slack_app_token"),
        slack_app_url=read_plain_url(table, "slack_app_url", defaults.slack_app_url),
        pagerduty_url=read_plain_url(table, "pagerduty_url", defaults.pagerduty_url),
        telegram_api_url=read_plain_url(table, "telegram_api_url", defaults.telegram_api_url),
        telegram_bot_token=read_secret(table, "telegram_bot_token"),
    )
    table.finish((), lambda text: None)
    if options.slack_api_url and options.slack_app_token and not _is_app_url(options):
        table.fail("slack_app_token", "give it or slack_api_url, not both")
    return options


def _check_unused(table: ConfigMapping) -> None:
    """Keys of receivers that we do not send must still be right: the file may run in Alertmanager too."""
    for key in NO_EFFECT:
        table.raw(key)
        if key.endswith("_url"):
            read_secret_url(table, key)
        elif f"{key}_file" in NO_EFFECT:
            read_secret(table, key)


def _is_app_url(options: GlobalOptions) -> bool:
    """Files from before there were app tokens have the app's URL as `slack_api_url`."""
    url = options.slack_api_url
    return url.path is None and url.reveal() == options.slack_app_url


def read_secret(table: ConfigMapping, key: str) -> SecretText:
    """`key`, or `key_file`; empty if neither is given."""
    path, text = table.file(f"{key}_file"), table.text(key)
    if text and path is not None:
        table.fail(key, f"give it or {key}_file, not both")
    return SecretText(text, path)


def read_secret_url(table: ConfigMapping, key: str) -> SecretText:
    secret = read_secret(table, key)
    if secret.path is None and table.has(key):
        _check_url(table, key, secret.reveal())
    return secret


def read_plain_url(table: ConfigMapping, key: str, default: str) -> str:
    url = table.text(key, default)
    _check_url(table, key, url)
    return url


def _check_url(table: ConfigMapping, key: str, url: str) -> None:
    if url == SECRET or "{{" in url:  # a redacted file, which amtool reads too; a template
        return
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_url = is_url and not any(one.isspace() for one in parts.netloc)
    except ValueError:
        is_url = False
    if not is_url:
        table.fail(key, "must be an http:// or https:// URL")  # not repeated: it may hold a token


def read_notify_http(table: ConfigMapping, options: GlobalOptions) -> HttpConfig:
    """`http_config` of this table, or the global one."""
    if not table.has("http_config"):
        table.raw("http_config")
        return options.http
    part = table.table("http_config")
    http = read_http_config(part)

    def refuse(text: str) -> None:
        for key in UNSUPPORTED:
            if key not in HARMLESS_HTTP and part.has(key) and part.raw(key) not in (False, "false", "", [], {}):
                part.fail(
                    key,
                    "is not supported here; without it the message would be sent differently than configured",
                )

    part.finish(UNSUPPORTED, refuse)
    return http


def read_notify_tls(table: ConfigMapping, key: str) -> tuple[ssl.SSLContext, str] | None:
    """The context and the name to check the certificate for, which may be empty."""
    if not table.has(key):
        table.raw(key)
        return None
    wrapped = ConfigMapping({"tls_config": table.raw(key)}, table.location, table.folder, table.files)
    http = read_http_config(wrapped)
    return (http.tls, http.server_name) if http.tls is not None else None


def read_host_port(table: ConfigMapping, key: str) -> tuple[str, int] | None:
    text = table.text(key)
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        table.fail(key, f"{text!r} is not HOST:PORT, for instance mail.example.org:587")
    return host.removeprefix("[").removesuffix("]"), int(port)
