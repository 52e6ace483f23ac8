"""`--notify URL`: channels without a file, with a route tree that suits most fleets.

    mailto://user:password@smtp.example.org:587?to=a@example.org&from=b@example.org
    slack://hooks.slack.com/services/T0/B0/XXX      discord://ID/TOKEN       telegram://BOT_TOKEN/CHAT_ID
    ntfy://ntfy.sh/TOPIC    pagerduty://ROUTING_KEY    msteams+https://…     https://… (a webhook, version 4)

Other schemes go to apprise. A wrong URL is a UsageError that does not repeat its secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from gpuscope.base.errors import UsageError
from gpuscope.judge.notify.alert_routes import AlertRoute, InhibitRule, child_key
from gpuscope.judge.notify.alerting_config import AlertingConfig, AlertReceiver, redact_alerting
from gpuscope.judge.notify.channel_configs import (
    PAGERDUTY_DETAILS,
    PAGERDUTY_TEXTS,
    SLACK_TEXTS,
    AppriseConfig,
    ChannelConfig,
    DiscordConfig,
    EmailConfig,
    MsTeamsV2Config,
    NtfyConfig,
    PagerDutyConfig,
    SlackConfig,
    TelegramConfig,
    WebhookConfig,
)
from gpuscope.judge.notify.matcher_parser import parse_matchers
from gpuscope.judge.notify.secret_text import SecretText
from gpuscope.judge.rules.shipped import inhibit_rules

GROUP_BY = ("alertname", "severity")
GROUP_WAIT = 0.5
"""Alerts of one evaluation arrive together, so a short wait is enough."""
HEARTBEAT_SECONDS = 60.0
WATCHDOG = 'alertname="Watchdog"'
NOBODY, EVERYBODY, HEARTBEAT = "nobody", "notify", "heartbeat"
INFO = 'severity="info"'
INFO_GROUP_WAIT, INFO_REPEAT_INTERVAL = 600.0, 3 * 86400.0
"""Alerts that need no action wait longer, to be grouped."""
SAME_TROUBLE = ('severity="critical"', 'severity="warning"', ("alertname", "instance", "uuid"))
"""Source, target and equal labels of the inhibition rule besides those of the shipped rules."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*", re.IGNORECASE | re.ASCII)


def default_alerting(urls: Sequence[str] = (), heartbeat_url: str = "") -> AlertingConfig:
    """Without a URL nothing is sent, but alerts and silences are still shown."""
    channels = tuple(parse_notify_url(url) for url in urls)
    receivers = {EVERYBODY: AlertReceiver(EVERYBODY, channels), NOBODY: AlertReceiver(NOBODY)}
    watchdog_receiver = HEARTBEAT if heartbeat_url else NOBODY
    if heartbeat_url:
        ping = parse_notify_url(heartbeat_url, "--heartbeat")
        if ping.kind != "webhook":
            raise UsageError("--heartbeat: must have the form https://HOST/PATH")
        receivers[HEARTBEAT] = AlertReceiver(HEARTBEAT, (ping,))
    root = AlertRoute(receiver=EVERYBODY, group_by=frozenset(GROUP_BY), group_wait=GROUP_WAIT)
    watchdog = replace(
        _child(root, WATCHDOG, 0),
        receiver=watchdog_receiver,
        group_by=frozenset(),
        group_wait=0.0,
        group_interval=HEARTBEAT_SECONDS,
        repeat_interval=HEARTBEAT_SECONDS / 2,  # shorter than the interval, or every second beat is left out
    )
    info = replace(_child(root, INFO, 1), group_wait=INFO_GROUP_WAIT, repeat_interval=INFO_REPEAT_INTERVAL)
    return AlertingConfig(
        route=replace(root, routes=(watchdog, info)),
        receivers=receivers,
        inhibit_rules=tuple(
            InhibitRule(parse_matchers(source), parse_matchers(target), equal)
            for source, target, equal in _inhibitions()
        ),
        original=_original(channels, watchdog_receiver),
    )


def _child(parent: AlertRoute, matcher: str, position: int) -> AlertRoute:
    matchers = parse_matchers(matcher)
    key = child_key(parent.key, matchers)
    return replace(parent, matchers=matchers, key=key, id=f"{key}/{position}")


def _inhibitions() -> list[tuple[str, str, tuple[str, ...]]]:
    """Source, target and equal labels: one message for a host that is down, not one for each of its parts."""
    shipped = [
        (f'alertname="{source}"', f'alertname=~"{"|".join(targets)}"', tuple(equal))
        for source, targets, equal in inhibit_rules()
    ]
    return [*shipped, SAME_TROUBLE]


def _original(channels: Sequence[ChannelConfig], watchdog_receiver: str) -> str:
    """The same as a file, for amtool; channels that Alertmanager does not have are left out."""
    kinds = [{"webhook_configs": [{"url": "x"}]} for one in channels if one.kind == "webhook"][:1]
    receivers: list[dict[str, object]] = [{"name": EVERYBODY}, {"name": NOBODY}]
    for entry in kinds:
        receivers[0] |= entry
    if watchdog_receiver == HEARTBEAT:
        receivers.append({"name": HEARTBEAT, "webhook_configs": [{"url": "x"}]})
    document = {
        "route": {
            "receiver": EVERYBODY,
            "group_by": list(GROUP_BY),
            "group_wait": "500ms",
            "routes": [
                {
                    "receiver": watchdog_receiver,
                    "matchers": [WATCHDOG],
                    "group_by": [],
                    "group_wait": "0s",
                    "group_interval": "1m",
                    "repeat_interval": "30s",
                },
                {"matchers": [INFO], "group_wait": "10m", "repeat_interval": "3d"},
            ],
        },
        "inhibit_rules": [
            {"source_matchers": [source], "target_matchers": [target], "equal": list(equal)}
            for source, target, equal in _inhibitions()
        ],
        "receivers": receivers,
    }
    return redact_alerting(document)


def parse_notify_url(url: str, origin: str = "--notify") -> ChannelConfig:
    scheme, separator, rest = url.partition("://")
    if not separator and url.startswith("mailto:"):
        scheme, rest = "mailto", url.removeprefix("mailto:")
        separator = "://"
    if not separator or not rest or _SCHEME.fullmatch(scheme) is None:
        raise UsageError(f"{origin}: not a URL such as https://…, mailto://… or ntfy://ntfy.sh/topic")
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        if scheme.lower() in _WITH_PORT:
            parts.port  # noqa: B018 - raises for a wrong one
    except ValueError:  # its text would repeat a part of the URL
        raise UsageError(f"{origin} {scheme}://…: the host or the port is not valid") from None
    read = _SCHEMES.get(scheme.lower())
    if read is not None:
        return read(url, parts, f"{origin} {scheme}://…")
    return AppriseConfig(url=SecretText(url), scheme=scheme)


def _wrong(origin: str, form: str) -> UsageError:
    return UsageError(f"{origin}: must have the form {form}")


def _webhook(url: str, parts: SplitResult, origin: str) -> WebhookConfig:
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _wrong(origin, "https://HOST/PATH")
    return WebhookConfig(url=SecretText(url))


def _segments(parts: SplitResult) -> list[str]:
    return [part for part in (parts.netloc, *parts.path.split("/")) if part]


def _slack(url: str, parts: SplitResult, origin: str) -> SlackConfig:
    words = _segments(parts)
    if words and words[0] == "hooks.slack.com":
        words = words[2:]  # without `services`
    if len(words) != 3:
        raise _wrong(origin, "slack://T…/B…/SECRET or slack://hooks.slack.com/services/T…/B…/SECRET")
    return SlackConfig(
        url=SecretText("https://hooks.slack.com/services/" + "/".join(words)),
        send_resolved=True,
        texts=SLACK_TEXTS,
    )


def _discord(url: str, parts: SplitResult, origin: str) -> DiscordConfig:
    words = _segments(parts)
    if len(words) != 2:
        raise _wrong(origin, "discord://WEBHOOK_ID/TOKEN")
    return DiscordConfig(url=SecretText("https://discord.com/api/webhooks/" + "/".join(words)))


def _telegram(url: str, parts: SplitResult, origin: str) -> TelegramConfig:
    words = _segments(parts)
    if len(words) != 2 or re.fullmatch(r"-?\d+", words[1], re.ASCII) is None:
        raise _wrong(origin, "telegram://BOT_TOKEN/CHAT_ID")
    return TelegramConfig(bot_token=SecretText(words[0]), chat_id=SecretText(words[1]))


def _pagerduty(url: str, parts: SplitResult, origin: str) -> PagerDutyConfig:
    words = _segments(parts)
    if len(words) != 1:
        raise _wrong(origin, "pagerduty://ROUTING_KEY")
    texts = {**PAGERDUTY_TEXTS, "source": PAGERDUTY_TEXTS["client"]}
    return PagerDutyConfig(
        routing_key=SecretText(words[0]), service_key=SecretText(), texts=texts, details=PAGERDUTY_DETAILS
    )


def _teams(url: str, parts: SplitResult, origin: str) -> MsTeamsV2Config:
    if not parts.hostname:
        raise _wrong(origin, "msteams+https://HOST/PATH, with the URL of the workflow")
    return MsTeamsV2Config(url=SecretText(url.partition("+")[2]))


def _ntfy(url: str, parts: SplitResult, origin: str) -> NtfyConfig:
    topic = parts.path.strip("/")
    if not parts.hostname or not topic or "/" in topic:
        raise _wrong(origin, "ntfy://[USER:PASSWORD@|TOKEN@]HOST/TOPIC, ntfy+http:// without TLS")
    scheme = "http" if parts.scheme.endswith("+http") else "https"
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return NtfyConfig(
        url=SecretText(f"{scheme}://{parts.netloc.rpartition('@')[2]}/"),
        topic=SecretText(topic),
        token=SecretText(user if user and parts.password is None else ""),
        username=user if parts.password is not None else "",
        password=SecretText(password),
    )


def _mail(url: str, parts: SplitResult, origin: str) -> EmailConfig:
    form = "mailto://USER:PASSWORD@SMTP_HOST:587?to=A@EXAMPLE.ORG&from=B@EXAMPLE.ORG"
    options = parse_qs(parts.query)
    unknown = options.keys() - {"to", "from", "tls"}
    if unknown:
        raise UsageError(f"{origin}: unknown option {min(unknown)!r}; there are to, from and tls")
    to, sender = ", ".join(options.get("to", ())), options.get("from", [""])[0]
    tls = options.get("tls", ["starttls"])[0]
    if not parts.hostname or not to or tls not in ("starttls", "yes", "no"):
        raise _wrong(origin, f"{form}; tls is starttls, yes or no")
    user = unquote(parts.username or "")
    sender = sender or (user if "@" in user else to.partition(",")[0])
    port = parts.port or (465 if tls == "yes" else 587)
    return EmailConfig(
        to=to,
        sender=sender,
        host=parts.hostname,
        port=port,
        send_resolved=True,
        auth_username=user,
        auth_password=SecretText(unquote(parts.password or "")),
        require_tls=tls == "starttls",
        implicit_tls=tls == "yes" or port == 465,
        has_threads=True,
    )


_WITH_PORT = ("http", "https", "mailto", "msteams+https", "msteams+http", "ntfy", "ntfys", "ntfy+http")
_SCHEMES: dict[str, Callable[[str, SplitResult, str], ChannelConfig]] = {
    "http": _webhook,
    "https": _webhook,
    "mailto": _mail,
    "slack": _slack,
    "discord": _discord,
    "telegram": _telegram,
    "tgram": _telegram,
    "pagerduty": _pagerduty,
    "msteams+https": _teams,
    "msteams+http": _teams,
    "ntfy": _ntfy,
    "ntfys": _ntfy,
    "ntfy+http": _ntfy,
}
