"""Reads the entries of a receiver: `webhook_configs`, `email_configs` and the other kinds that we send.

Input: a table of the file and the global defaults. Output: a `ChannelConfig`. Kinds of Alertmanager's that we
do not send are refused by name, and so is every key that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpuscope.base.config_values import ConfigMapping
from gpuscope.judge.notify.channel_configs import (
    DEFAULT_HTML,
    PAGERDUTY_DETAILS,
    PAGERDUTY_TEXTS,
    SLACK_TEXTS,
    ChannelConfig,
    DiscordConfig,
    EmailConfig,
    MsTeamsV2Config,
    PagerDutyConfig,
    SlackConfig,
    TelegramConfig,
    WebhookConfig,
)
from gpuscope.judge.notify.global_options import (
    GlobalOptions,
    read_host_port,
    read_notify_http,
    read_notify_tls,
    read_plain_url,
    read_secret,
    read_secret_url,
)
from gpuscope.judge.notify.secret_text import SecretText

UNSUPPORTED_KINDS = (
    "opsgenie", "wechat", "pushover", "victorops", "sns", "webex", "msteams", "jira", "rocketchat",
    "mattermost", "incidentio",
)  # fmt: skip
NO_TEMPLATES = ("http_config", "tls_config", "auth_password", "auth_secret", "app_token", "bot_token")
_HEADER_NAME = re.compile(r"[!-9;-~]+", re.ASCII)


def _texts(table: ConfigMapping, defaults: Mapping[str, str]) -> dict[str, str]:
    return {key: table.text(key, default) for key, default in defaults.items()}


def _entries(
    table: ConfigMapping, key: str, keys: Sequence[str], required: Sequence[str]
) -> tuple[dict[str, str], ...]:
    found = []
    for one in table.tables(key):
        found.append({name: one.text(name) for name in keys if one.has(name)})
        for name in required:
            if not one.text(name):
                one.fail(name, "is missing")
        finish(one)
    return tuple(found)


def finish(table: ConfigMapping) -> None:
    """Refuse the keys that nothing has read."""
    table.finish((), lambda text: None)


def _webhook(table: ConfigMapping, options: GlobalOptions) -> WebhookConfig:
    url = read_secret_url(table, "url")
    if not url:
        table.fail("url", "give url or url_file")
    return WebhookConfig(
        url=url,
        send_resolved=table.switch("send_resolved", True),
        http=read_notify_http(table, options),
        max_alerts=table.count("max_alerts", 0),
        timeout=table.duration("timeout", 0.0),
        payload=table.raw("payload"),
    )


def _email(table: ConfigMapping, options: GlobalOptions) -> EmailConfig:
    to, sender = table.text("to"), table.text("from", options.smtp_from)
    host, port = read_host_port(table, "smarthost") or options.smtp_smarthost or ("", 0)
    for key, value in (("to", to), ("from", sender), ("smarthost", host)):
        if not value:
            table.fail(key, "is missing" if key == "to" else f"is missing, and so is smtp_{key} in global")
    password, secret = read_secret(table, "auth_password"), read_secret(table, "auth_secret")
    implicit = table.switch("force_implicit_tls", False) if table.has("force_implicit_tls") else None
    if implicit is None:
        implicit = options.smtp_force_implicit_tls
    tls, server_name = read_notify_tls(table, "tls_config") or options.smtp_tls or (None, "")
    has_threads, by_day = _threading(table)
    return EmailConfig(
        to=to,
        sender=sender,
        host=host,
        port=port,
        send_resolved=table.switch("send_resolved", False),
        hello=table.text("hello", options.smtp_hello),
        auth_username=table.text("auth_username", options.smtp_auth_username),
        auth_password=password or options.smtp_auth_password,
        auth_secret=secret or options.smtp_auth_secret,
        auth_identity=table.text("auth_identity", options.smtp_auth_identity),
        headers=_mail_headers(table, has_threads),
        html=table.text("html", DEFAULT_HTML),
        text=table.text("text"),
        require_tls=table.switch("require_tls", options.smtp_require_tls),
        implicit_tls=port == 465 if implicit is None else implicit,
        tls=tls,
        tls_server_name=server_name,
        has_threads=has_threads,
        threads_by_day=by_day,
    )


def _threading(table: ConfigMapping) -> tuple[bool, bool]:
    part = table.table("threading")
    enabled, by_date = part.switch("enabled", False), part.text("thread_by_date")
    finish(part)
    if enabled and by_date not in ("none", "daily"):
        part.fail("thread_by_date", f"{by_date!r} is not one of none, daily")
    return enabled, by_date == "daily"


def _mail_headers(table: ConfigMapping, has_threads: bool) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for name, value in table.labels("headers").items():
        canonical = "-".join(part.capitalize() for part in name.split("-"))
        if _HEADER_NAME.fullmatch(name) is None:
            table.fail("headers", f"{name!r} is not the name of a mail header")
        if canonical in found:
            table.fail("headers", f"{canonical} is given twice")
        if has_threads and canonical in ("References", "In-Reply-To"):
            table.fail("headers", f"{canonical} is set by threading; give only one of them")
        found[canonical] = value
    return tuple(found.items())


def _slack(table: ConfigMapping, options: GlobalOptions) -> SlackConfig:
    url, token = _slack_target(table, options)
    if table.switch("update_message", False):
        table.fail("update_message", "is not supported here; each notification is a message of its own")
    return SlackConfig(
        url=url,
        token=token,
        send_resolved=table.switch("send_resolved", False),
        http=read_notify_http(table, options),
        texts=_texts(table, SLACK_TEXTS),
        fields=_slack_fields(table),
        actions=_slack_actions(table),
        short_fields=table.switch("short_fields", False),
        link_names=table.switch("link_names", False),
        mrkdwn_in=table.strings("mrkdwn_in") or ("fallback", "pretext", "text"),
        timeout=table.duration("timeout", 0.0),
    )


def _slack_target(table: ConfigMapping, options: GlobalOptions) -> tuple[SecretText, SecretText]:
    """URL and app token; the token is empty for an incoming webhook."""
    url, token = read_secret_url(table, "api_url"), read_secret(table, "app_token")
    app_url = read_plain_url(table, "app_url", options.slack_app_url)
    has_authorization = table.has("http_config") and table.table("http_config").has("authorization")
    if url and token:
        table.fail("app_token", "give it or api_url, not both")
    if not url and not token and not has_authorization:
        token = options.slack_app_token
    if token and has_authorization:
        table.fail("app_token", "it is sent as authorization; remove authorization from http_config")
    url = url or options.slack_api_url
    if not url and not token:
        table.fail("api_url", "is missing, and so are slack_api_url and slack_app_token in global")
    return (SecretText(app_url) if token else url), token


def _slack_fields(table: ConfigMapping) -> tuple[Mapping[str, Any], ...]:
    found = []
    for one in table.tables("fields"):
        entry: dict[str, Any] = {key: one.text(key) for key in ("title", "value")}
        for key, value in entry.items():
            if not value:
                one.fail(key, "is missing")
        if one.has("short"):
            entry["short"] = one.switch("short", False)
        finish(one)
        found.append(entry)
    return tuple(found)


def _slack_actions(table: ConfigMapping) -> tuple[Mapping[str, Any], ...]:
    found = []
    for one in table.tables("actions"):
        entry: dict[str, Any] = {
            key: one.text(key) for key in ("type", "text", "url", "style", "name", "value") if one.has(key)
        }
        for key in ("type", "text"):
            if not entry.get(key):
                one.fail(key, "is missing")
        if not entry.get("url") and not entry.get("name"):
            one.fail("url", "give url or name")
        if one.has("confirm"):
            confirm = one.table("confirm")
            entry["confirm"] = {key: confirm.text(key) for key in ("text", "title", "ok_text", "dismiss_text")}
            if not entry["confirm"]["text"]:
                confirm.fail("text", "is missing")
            finish(confirm)
        finish(one)
        found.append(entry)
    return tuple(found)


def _teams(table: ConfigMapping, options: GlobalOptions) -> MsTeamsV2Config:
    url = _required_webhook(table)
    defaults = MsTeamsV2Config(url=url)
    return MsTeamsV2Config(
        url=url,
        send_resolved=table.switch("send_resolved", True),
        http=read_notify_http(table, options),
        title=table.text("title", defaults.title),
        text=table.text("text", defaults.text),
    )


def _discord(table: ConfigMapping, options: GlobalOptions) -> DiscordConfig:
    url = _required_webhook(table)
    defaults = DiscordConfig(url=url)
    return DiscordConfig(
        url=url,
        send_resolved=table.switch("send_resolved", True),
        http=read_notify_http(table, options),
        title=table.text("title", defaults.title),
        message=table.text("message", defaults.message),
        content=table.text("content", defaults.content),
        username=table.text("username"),
        avatar_url=table.text("avatar_url"),
    )


def _required_webhook(table: ConfigMapping) -> SecretText:
    url = read_secret_url(table, "webhook_url")
    if not url:
        table.fail("webhook_url", "give webhook_url or webhook_url_file")
    return url


def _telegram(table: ConfigMapping, options: GlobalOptions) -> TelegramConfig:
    token = read_secret(table, "bot_token") or options.telegram_bot_token
    if not token:
        table.fail("bot_token", "is missing, and so is telegram_bot_token in global")
    chat_id = read_secret(table, "chat_id")
    if not chat_id:
        table.fail("chat_id", "is missing")
    if chat_id.path is None and re.fullmatch(r"-?[1-9]\d{0,18}", chat_id.reveal(), re.ASCII) is None:
        table.fail("chat_id", f"{chat_id.reveal()!r} is not the number of a chat")
    defaults = TelegramConfig(bot_token=token, chat_id=chat_id)
    return TelegramConfig(
        bot_token=token,
        chat_id=chat_id,
        api_url=read_plain_url(table, "api_url", options.telegram_api_url),
        send_resolved=table.switch("send_resolved", True),
        http=read_notify_http(table, options),
        message_thread_id=table.count("message_thread_id", 0),
        message=table.text("message", defaults.message),
        disable_notifications=table.switch("disable_notifications", False),
        parse_mode=table.one_of("parse_mode", "HTML", ("", "Markdown", "MarkdownV2", "HTML")),
    )


def _pagerduty(table: ConfigMapping, options: GlobalOptions) -> PagerDutyConfig:
    routing_key, service_key = read_secret(table, "routing_key"), read_secret(table, "service_key")
    if not routing_key and not service_key:
        table.fail("routing_key", "give routing_key or service_key")
    texts = _texts(table, PAGERDUTY_TEXTS)
    texts["source"] = texts["source"] or texts["client"]
    details = table.raw("details") or {}
    if not isinstance(details, dict):
        table.fail("details", "must be a mapping")
    return PagerDutyConfig(
        routing_key=routing_key,
        service_key=service_key,
        url=read_plain_url(table, "url", options.pagerduty_url),
        send_resolved=table.switch("send_resolved", True),
        http=read_notify_http(table, options),
        texts=texts,
        details={**PAGERDUTY_DETAILS, **details},
        images=_entries(table, "images", ("href", "alt", "src"), ()),
        links=_entries(table, "links", ("href", "text"), ()),
        timeout=table.duration("timeout", 0.0),
    )


_Reader = Callable[[ConfigMapping, GlobalOptions], ChannelConfig]
KINDS: Mapping[str, _Reader] = {
    "webhook": _webhook,
    "email": _email,
    "slack": _slack,
    "msteamsv2": _teams,
    "discord": _discord,
    "telegram": _telegram,
    "pagerduty": _pagerduty,
}


def read_channels(
    receiver: ConfigMapping, options: GlobalOptions, check_template: Callable[[str], None]
) -> tuple[ChannelConfig, ...]:
    """Every entry of a receiver. `check_template` raises ValueError for a text that is not a template."""
    for kind in UNSUPPORTED_KINDS:
        if receiver.has(f"{kind}_configs"):
            supported = ", ".join(f"{one}_configs" for one in KINDS)
            receiver.fail(
                f"{kind}_configs", f"this kind of receiver is not supported here; there are {supported}"
            )
        receiver.raw(f"{kind}_configs")
    found: list[ChannelConfig] = []
    for kind, read in KINDS.items():
        documents = receiver.raw(f"{kind}_configs")
        for entry, document in zip(receiver.tables(f"{kind}_configs"), documents or (), strict=True):
            if document is None:
                receiver.fail(f"{kind}_configs", "an entry is empty")
            found.append(read(entry, options))
            finish(entry)
            _check_templates(entry, document, check_template)
    return tuple(found)


def _check_templates(
    entry: ConfigMapping, document: Mapping[str, object], check_template: Callable[[str], None]
) -> None:
    for key, value in document.items():
        if key in NO_TEMPLATES:
            continue
        for text in _texts_in(value):
            try:
                check_template(text)
            except ValueError as error:
                entry.fail(key, f"{text[:60]!r}: {error}")


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)
