"""E-mail by SMTP: STARTTLS or implicit TLS, log-in, one message with plain text and HTML.

Labels reach headers through templates: line ends and control characters are removed there, so that no label can
add a header or a recipient.
"""

from __future__ import annotations

import logging
import re
import smtplib
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, getaddresses, make_msgid
from typing import Any, NamedTuple

from gpuscope.judge.notify.channel_configs import EmailConfig, default_template
from gpuscope.judge.notify.channels import NOBODY_TOLD, SendError, Told
from gpuscope.judge.notify.default_messages import plain_body
from gpuscope.judge.notify.message_templates import Messages, MessageStyle, fit_alerts
from gpuscope.judge.notify.notification import Notification
from gpuscope.judge.notify.senders.json_post import MAX_ATTEMPT_SECONDS, cut
from gpuscope.judge.notify.senders.pagerduty import group_hash

CRAM_MD5 = "CRAM-MD5"
MAX_SUBJECT_CHARACTERS = 500
MAX_REPLY_BYTES = 64 << 10
"""Of all replies to one mail; a server sends a few hundred."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_ADDRESS = re.compile(r"[^\s<>@,;:\"()\\]+@[^\s<>@,;:\"()\\]+")
_SEPARATORS = re.compile(r"[\s<>,;:\"()\[\]\\\x00-\x1f]")
_LIST_COMMA = re.compile(r",(?![^{]*\}\})")
"""Not one within {{ }}."""
_ONE_ACTION = re.compile(r"\{\{[^{}]*\}\}")
log = logging.getLogger("gpuscope.notify")


def one_header_line(text: str) -> str:
    return cut(" ".join(_CONTROL.sub(" ", text).split()), MAX_SUBJECT_CHARACTERS)


class _ReplyReader:
    """Reads the lines of a mail server with one time limit and one size limit for all of them.

    smtplib waits anew for each byte, and keeps every line of a reply that does not end."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._buffer = bytearray()
        self._read_bytes = 0

    def readline(self, limit: int) -> bytes:
        while b"\n" not in self._buffer and len(self._buffer) < limit:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._connection.settimeout(left)
            piece = self._connection.recv(4096)
            self._read_bytes += len(piece)
            if self._read_bytes > MAX_REPLY_BYTES:
                raise smtplib.SMTPServerDisconnected(f"the replies have more than {MAX_REPLY_BYTES} bytes")
            if not piece:
                break
            self._buffer += piece
        end = min(limit, self._buffer.find(b"\n") + 1 or len(self._buffer))
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        return line

    def close(self) -> None:
        self._buffer.clear()


class _NamedContext:
    """Checks the server's certificate for `tls_config.server_name`; smtplib only checks for the host."""

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._context = context
        self._server_name = server_name

    def wrap_socket(self, connection: socket.socket, server_hostname: str | None = None) -> ssl.SSLSocket:
        return self._context.wrap_socket(connection, server_hostname=self._server_name or server_hostname)


class _BoundedReplies:
    """For smtplib's clients: replaces the file that replies are read from, also after STARTTLS."""

    reply_deadline: float
    auth_identity: str
    file: Any
    sock: socket.socket | None
    user: str
    password: str

    def auth_plain(self, challenge: Any = None) -> str:
        """As smtplib's, with the identity to act as."""
        return f"{self.auth_identity}\0{self.user}\0{self.password}"

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _ReplyReader(self.sock, self.reply_deadline)
        reply: tuple[int, bytes] = super().getreply()  # type: ignore[misc]
        return reply


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
        headers.setdefault("Subject", one_header_line(expand(default_template("email.default.subject"))))
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
        found: list[Address] = []
        left_out, refused = 0, None
        for entry in self._entries(text):
            try:
                found += self._addresses_of(entry, key, notification)
            except SendError as error:
                if "{{" not in entry:
                    raise
                log.error("mail: left out a recipient: %s", error)
                left_out, refused = left_out + 1, error
        if not found:
            raise refused or SendError(f"{key}: no mail address", may_retry=False)
        return found, left_out

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
        root = f"<alert-{group_hash(notification.group_key)[:16]}-{day}@alertmanager>"
        mail["References"] = root
        mail["In-Reply-To"] = root

    def _add_bodies(self, mail: EmailMessage, notification: Notification) -> Told:
        """The alerts that both bodies have: a mail program shows one of them."""
        config = self._config
        if config.text:
            text, told = self._messages.fit(config.text, notification)
        else:
            text, told = fit_alerts(notification, plain_body, str)
        mail.set_content(text.encode("utf-8", "replace").decode(), cte="quoted-printable")
        if config.html:
            page, told_in_page = self._messages.fit(config.html, notification, style=MessageStyle.HTML)
            mail.add_alternative(
                page.encode("utf-8", "replace").decode(), subtype="html", cte="quoted-printable"
            )
            told &= told_in_page
        return told

    def send(self, notification: Notification, timeout_seconds: float) -> Told:
        mail, sender, recipients, told = self.message(notification)
        refused = self.deliver(mail, sender, recipients, timeout_seconds)
        return NOBODY_TOLD if refused else told

    def deliver(
        self, mail: EmailMessage, sender: str, recipients: list[str], timeout_seconds: float
    ) -> list[str]:
        """Hands a mail over to the server; returns the recipients that it refused. Raises SendError, also if it
        refused all of them."""
        deadline = time.monotonic() + min(timeout_seconds, MAX_ATTEMPT_SECONDS)
        try:
            client = self._connect(deadline)
            try:
                self._prepare(client)
                _limit(client, deadline)
                refused = list(client.send_message(mail, sender, recipients))
            finally:
                client.close()
        except smtplib.SMTPNotSupportedError as error:
            raise SendError(_reason(error), may_retry=False) from None
        except smtplib.SMTPException as error:
            raise SendError(_reason(error), may_retry=True) from None
        except TimeoutError:
            raise SendError(
                f"no answer of {self._config.host} in time", may_retry=True, reason="contextDeadlineExceeded"
            ) from None
        except (OSError, UnicodeError) as error:
            raise SendError(f"{self._config.host}: {error}", may_retry=isinstance(error, OSError)) from None
        if refused:
            log.error("mail: %s refused the recipients %s", self._config.host, ", ".join(refused)[:200])
        return refused

    def _connect(self, deadline: float) -> smtplib.SMTP:
        config = self._config
        hello = config.hello or "localhost"
        seconds = max(0.001, deadline - time.monotonic())

        class BoundedSmtp(_BoundedReplies, smtplib.SMTP):
            reply_deadline = deadline
            auth_identity = config.auth_identity

        class BoundedSmtps(_BoundedReplies, smtplib.SMTP_SSL):
            reply_deadline = deadline
            auth_identity = config.auth_identity

        if config.implicit_tls:
            client: smtplib.SMTP = BoundedSmtps(
                config.host, config.port, local_hostname=hello, timeout=seconds, context=self._tls()
            )
        else:
            client = BoundedSmtp(config.host, config.port, local_hostname=hello, timeout=seconds)
        client.ehlo_or_helo_if_needed()
        return client

    def _tls(self) -> Any:
        config = self._config
        return _NamedContext(config.tls or ssl.create_default_context(), config.tls_server_name)

    def _prepare(self, client: smtplib.SMTP) -> None:
        config = self._config
        if config.require_tls and not config.implicit_tls:
            if not client.has_extn("starttls"):
                raise SendError(
                    f"require_tls is true, but {config.host} does not offer STARTTLS; set require_tls to false "
                    "only if the way there is safe",
                    may_retry=True,
                )
            client.starttls(context=self._tls())
            client.ehlo()
        if config.auth_username and client.has_extn("auth"):
            offered = client.esmtp_features["auth"].upper().split()
            others = [one for one in offered if one != CRAM_MD5]
            if config.auth_secret and CRAM_MD5 in offered:
                chosen, secret = [CRAM_MD5], config.auth_secret
            else:
                # smtplib would try CRAM-MD5 first: with a password each mail would be a failed log-in.
                chosen, secret = others or offered, config.auth_password
            client.esmtp_features["auth"] = " ".join(chosen)
            client.login(config.auth_username, secret.reveal())


def _limit(client: smtplib.SMTP, deadline: float) -> None:
    connection = client.sock
    if isinstance(connection, socket.socket):
        connection.settimeout(max(0.001, deadline - time.monotonic()))


def _parse_addresses(text: str, key: str) -> list[Address]:
    found = []
    for name, address in getaddresses([one_header_line(text)]):
        if _ADDRESS.fullmatch(address) is None:
            raise SendError(f"{key}: {address[:100]!r} is not a mail address", may_retry=False)
        user, _, domain = address.rpartition("@")
        found.append(Address(name, user, domain))
    if not found:
        raise SendError(f"{key}: no mail address", may_retry=False)
    return found


def _reason(error: smtplib.SMTPException) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        answer = error.smtp_error
        text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
        return f"the mail server answered {error.smtp_code} {' '.join(text.split())[:200]}"
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return f"the mail server refused {', '.join(error.recipients)[:200]}"
    return str(error)[:200]
