"""E-mail: one message with plain text and HTML, through a mail server.

Labels reach headers through templates: line ends and control characters are removed there, so that no label can
add a header or a recipient.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, getaddresses, make_msgid
from typing import ClassVar, NamedTuple
from urllib.parse import SplitResult, parse_qs, unquote

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.http_config import HttpConfig
from gpuscope.judge.notify.channel import (
    NOBODY_TOLD,
    SecretText,
    SendError,
    Told,
    cut,
    finish,
    read_channel_tls,
    read_host_port,
    read_secret,
)
from gpuscope.judge.notify.channels import ChannelKind, UrlForm
from gpuscope.judge.notify.message_texts import HTML, PLAIN_TEXT, Messages, default_template
from gpuscope.judge.notify.notification import Notification
from gpuscope.judge.notify.smtp_client import SmtpServer, deliver_mail

log = logging.getLogger("gpuscope.notify")
MAX_SUBJECT_CHARACTERS = 500
SUBJECT = default_template("email.default.subject")
DEFAULT_HTML = default_template("email.default.html")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_HEADER_NAME = re.compile(r"[!-9;-~]+", re.ASCII)
_ADDRESS = re.compile(r"[^\s<>@,;:\"()\\]+@[^\s<>@,;:\"()\\]+")
_SEPARATORS = re.compile(r"[\s<>,;:\"()\[\]\\\x00-\x1f]")
_LIST_COMMA = re.compile(r",(?![^{]*\}\})")
"""Not one within {{ }}."""
_ONE_ACTION = re.compile(r"\{\{[^{}]*\}\}")
# Styles are inline: mail programs drop the others.
TEXTS = """
{{ define "email.default.subject" }}{{ template "__subject" . }}{{ end }}
{{ define "email.default.text" }}{{ template "__text" . }}{{ end }}
{{ define "email.alert_list" -}}
{{ range .Listed }}<p><b>{{ .Name }}</b></p><table>
{{- range .Rows }}<tr><td style="padding-right:1em;color:#666">{{ .Name }}</td><td>{{ .Value }}</td></tr>
{{- end }}</table>
{{- with .Links }}<p>{{ range $at, $link := . }}{{ if $at }} · {{ end }}<a href="{{ .Value }}">{{ .Name }}</a>
{{- end }}</p>{{ end }}
{{ end }}{{ with .More }}<p>and {{ . }} more</p>
{{ end }}{{ end }}
{{ define "email.default.html" -}}
<!doctype html><html><head><meta charset="utf-8"></head>
{{- /**/ -}}
<body style="font-family:sans-serif;font-size:14px;color:#222">
<h2>{{ template "__subject" . }}</h2>
{{ with .Alerts.Firing }}<h3 style="color:#c62828">Firing</h3>
{{ template "email.alert_list" . }}{{ end }}{{ with .Alerts.Resolved }}<h3 style="color:#2e7d32">Resolved</h3>
{{ template "email.alert_list" . }}{{ end }}{{ if match "^https?://" .PageURL }}
{{- /**/ -}}
<p><a href="{{ .PageURL }}">All alerts</a></p>{{ end }}</body></html>
{{- end }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailConfig(SmtpServer):
    kind: ClassVar[str] = "email"
    to: str
    sender: str
    """`from`, which is a keyword of Python."""
    send_resolved: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    html: str = DEFAULT_HTML
    text: str = ""
    has_threads: bool = False
    threads_by_day: bool = False

    def target(self) -> str:
        return self.to


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailGlobals:
    sender: str
    hello: str
    smarthost: tuple[str, int] | None
    auth_username: str
    auth_password: SecretText
    auth_secret: SecretText
    auth_identity: str
    require_tls: bool
    tls: tuple[ssl.SSLContext, str] | None = field(repr=False)
    implicit_tls: bool | None


def _read_globals(table: ConfigMapping) -> EmailGlobals:
    return EmailGlobals(
        sender=table.text("smtp_from"),
        hello=table.text("smtp_hello", "localhost"),
        smarthost=read_host_port(table, "smtp_smarthost"),
        auth_username=table.text("smtp_auth_username"),
        auth_password=read_secret(table, "smtp_auth_password"),
        auth_secret=read_secret(table, "smtp_auth_secret"),
        auth_identity=table.text("smtp_auth_identity"),
        require_tls=table.switch("smtp_require_tls", True),
        tls=read_channel_tls(table, "smtp_tls_config"),
        implicit_tls=_read_implicit_tls(table, "smtp_force_implicit_tls"),
    )


def _read_implicit_tls(table: ConfigMapping, key: str) -> bool | None:
    value = table.switch(key, False)
    return value if table.has(key) else None


def _read(table: ConfigMapping, http: HttpConfig, own: EmailGlobals) -> EmailConfig:
    to, sender = table.text("to"), table.text("from", own.sender)
    host, port = read_host_port(table, "smarthost") or own.smarthost or ("", 0)
    for key, value in (("to", to), ("from", sender), ("smarthost", host)):
        if not value:
            table.fail(key, "is missing" if key == "to" else f"is missing, and so is smtp_{key} in global")
    implicit = _read_implicit_tls(table, "force_implicit_tls")
    implicit = own.implicit_tls if implicit is None else implicit
    tls, server_name = read_channel_tls(table, "tls_config") or own.tls or (None, "")
    has_threads, by_day = _read_threading(table)
    return EmailConfig(
        to=to,
        sender=sender,
        host=host,
        port=port,
        send_resolved=table.switch("send_resolved", False),
        hello=table.text("hello", own.hello),
        auth_username=table.text("auth_username", own.auth_username),
        auth_password=read_secret(table, "auth_password") or own.auth_password,
        auth_secret=read_secret(table, "auth_secret") or own.auth_secret,
        auth_identity=table.text("auth_identity", own.auth_identity),
        headers=_read_headers(table, has_threads),
        html=table.text("html", DEFAULT_HTML),
        text=table.text("text"),
        require_tls=table.switch("require_tls", own.require_tls),
        implicit_tls=port == 465 if implicit is None else implicit,
        tls=tls,
        tls_server_name=server_name,
        has_threads=has_threads,
        threads_by_day=by_day,
    )


def _read_threading(table: ConfigMapping) -> tuple[bool, bool]:
    """Whether the mails of a group are a thread, and a new one each day."""
    part = table.table("threading")
    enabled, by_date = part.switch("enabled", False), part.text("thread_by_date")
    finish(part)
    if enabled and by_date not in ("none", "daily"):
        part.fail("thread_by_date", f"{by_date!r} is not one of none, daily")
    return enabled, by_date == "daily"


def _read_headers(table: ConfigMapping, has_threads: bool) -> tuple[tuple[str, str], ...]:
    headers: dict[str, str] = {}
    for name, value in table.labels("headers").items():
        canonical = "-".join(part.capitalize() for part in name.split("-"))
        if _HEADER_NAME.fullmatch(name) is None:
            table.fail("headers", f"{name!r} is not the name of a mail header")
        if canonical in headers:
            table.fail("headers", f"{canonical} is given twice")
        if has_threads and canonical in ("References", "In-Reply-To"):
            table.fail("headers", f"{canonical} is set by threading; give only one of them")
        headers[canonical] = value
    return tuple(headers.items())


def _parse_url(url: str, parts: SplitResult) -> EmailConfig | None:
    options = parse_qs(parts.query)
    unknown = options.keys() - {"to", "from", "tls"}
    if unknown:
        raise ValueError(f"unknown option {min(unknown)!r}; there are to, from and tls")
    to, sender = ", ".join(options.get("to", ())), options.get("from", [""])[0]
    tls = options.get("tls", ["starttls"])[0]
    if not parts.hostname or not to or tls not in ("starttls", "yes", "no"):
        return None
    user = unquote(parts.username or "")
    port = parts.port or (465 if tls == "yes" else 587)
    return EmailConfig(
        to=to,
        sender=sender or (user if "@" in user else to.partition(",")[0]),
        host=parts.hostname,
        port=port,
        send_resolved=True,
        auth_username=user,
        auth_password=SecretText(unquote(parts.password or "")),
        require_tls=tls == "starttls",
        implicit_tls=tls == "yes" or port == 465,
        has_threads=True,
    )


def one_header_line(text: str) -> str:
    return cut(" ".join(_CONTROL.sub(" ", text).split()), MAX_SUBJECT_CHARACTERS)


class ComposedMail(NamedTuple):
    """A mail, and its envelope: the sender's address and the recipients'."""

    mail: EmailMessage
    sender: str
    recipients: list[str]
    told: Told


class EmailSender:
    def __init__(
        self,
        config: EmailConfig,
        messages: Messages,
        new_message_id: Callable[[str], str] = lambda domain: make_msgid(domain=domain),
    ) -> None:
        self._config = config
        self._messages = messages
        self._new_message_id = new_message_id

    def message(self, notification: Notification) -> ComposedMail:
        config = self._config

        def expand(text: str) -> str:
            return self._messages.expand(text, notification)

        sender, _ = self._addresses(config.sender, "from", notification)
        recipients, left_out = self._addresses(config.to, "to", notification)
        if len(sender) != 1:
            raise SendError("from must be exactly one address", may_retry=False)
        mail = EmailMessage(policy=SMTP)
        headers = {name: one_header_line(expand(text)) for name, text in config.headers}
        for name, text in config.headers:
            if name.title() == "Reply-To" and "{{" in text:  # the other headers address nobody
                headers[name] = ", ".join(map(str, self._addresses(text, name, notification)[0]))
        headers.setdefault("Subject", one_header_line(self._messages.title(SUBJECT, notification)))
        for name, value in headers.items():
            mail[name] = value
        for name, addresses in (("From", sender), ("To", recipients)):
            if name not in headers:  # which are what people see; the envelope has the addresses
                mail[name] = addresses
        if "Message-Id" not in headers:
            mail["Message-Id"] = self._new_message_id(sender[0].domain)
        mail["Date"] = format_datetime(datetime.fromtimestamp(notification.sent_at, UTC))
        if config.has_threads:
            self._add_thread(mail, notification)
        told = self._add_bodies(mail, notification)
        envelope = [recipient.addr_spec for recipient in recipients]
        return ComposedMail(mail, sender[0].addr_spec, envelope, NOBODY_TOLD if left_out else told)

    def _addresses(self, text: str, key: str, notification: Notification) -> tuple[list[Address], int]:
        """The addresses of a list of templates, and how many entries were left out. Labels are what users
        choose: one of them in a template must not add a recipient, so an entry in which it does is left out."""
        addresses: list[Address] = []
        left_out, refused = 0, None
        for entry in self._entries(text):
            try:
                addresses += self._addresses_of(entry, key, notification)
            except SendError as error:
                if "{{" not in entry:
                    raise
                log.error("mail: left out a recipient: %s", error)
                left_out, refused = left_out + 1, error
        if not addresses:
            raise refused or SendError(f"{key}: no mail address", may_retry=False)
        return addresses, left_out

    def _entries(self, text: str) -> list[str]:
        """What the configuration lists, separated by commas, or the whole if these are within a template."""
        entries = [entry for entry in _LIST_COMMA.split(text) if entry.strip()]
        try:
            for entry in entries:
                self._messages.check(entry)
        except ValueError:
            return [text]
        return entries

    def _addresses_of(self, entry: str, key: str, notification: Notification) -> list[Address]:
        expanded = self._messages.expand(entry, notification)
        addresses = _parse_addresses(expanded, key)
        if expanded == self._messages.expand(entry, notification.without(_SEPARATORS)):
            return addresses
        if _ONE_ACTION.fullmatch(entry.strip()) and len(addresses) == 1:
            return addresses  # the configuration leaves the whole address to the label
        raise SendError(
            f"{key}: a label in {entry.strip()[:100]!r} has characters that separate addresses: "
            f"{expanded[:100]!r}",
            may_retry=False,
        )

    def _add_thread(self, mail: EmailMessage, notification: Notification) -> None:
        """Refers to a mail that was never sent: mail programs put the replies to it together."""
        moment = datetime.fromtimestamp(notification.sent_at, UTC)
        day = f"{moment:%Y-%m-%d}" if self._config.threads_by_day else ""
        root = f"<alert-{notification.group_hash[:16]}-{day}@alertmanager>"
        mail["References"] = root
        mail["In-Reply-To"] = root

    def _add_bodies(self, mail: EmailMessage, notification: Notification) -> Told:
        """The alerts that both bodies have: a mail program shows one of them."""
        config = self._config
        text, told = self._messages.fit(config.text or PLAIN_TEXT, notification)
        mail.set_content(text.encode("utf-8", "replace").decode(), cte="quoted-printable")
        if config.html:
            page, told_in_page = self._messages.fit(config.html, notification, style=HTML)
            mail.add_alternative(
                page.encode("utf-8", "replace").decode(), subtype="html", cte="quoted-printable"
            )
            told &= told_in_page
        return told

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        mail, sender, recipients, told = self.message(notification)
        refused = deliver_mail(self._config, mail, sender, recipients, timeout_seconds)
        return NOBODY_TOLD if refused else told


def _parse_addresses(text: str, key: str) -> list[Address]:
    addresses = []
    for name, address in getaddresses([one_header_line(text)]):
        if _ADDRESS.fullmatch(address) is None:
            raise SendError(f"{key}: {address[:100]!r} is not a mail address", may_retry=False)
        user, _, domain = address.rpartition("@")
        addresses.append(Address(name, user, domain))
    if not addresses:
        raise SendError(f"{key}: no mail address", may_retry=False)
    return addresses


KIND = ChannelKind(
    name="email",
    summary="e-mail; `tls=starttls` (default), `yes` (port 465) or `no`",
    sender=EmailSender,
    read=_read,
    read_globals=_read_globals,
    url=UrlForm(
        ("mailto",),
        "mailto://USER:PASSWORD@SMTP_HOST:587?to=A@EXAMPLE.ORG&from=B@EXAMPLE.ORG",
        _parse_url,
        has_port=True,
    ),
    texts=TEXTS,
    secret_keys=("auth_password", "auth_secret", "smtp_auth_password", "smtp_auth_secret"),
    plain_keys=("auth_password", "auth_secret"),
)
