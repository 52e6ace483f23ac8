"""E-mail by SMTP: STARTTLS or implicit TLS, log-in, one message with plain text and HTML.

Labels reach headers through templates: line ends and control characters are removed there, so that no label can
add a header or a recipient.
"""

from __future__ import annotations

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

from gpuscope.notify.channel_configs import EmailConfig, default_template
from gpuscope.notify.channels import SendError
from gpuscope.notify.default_messages import plain_body
from gpuscope.notify.message_templates import Messages, MessageStyle
from gpuscope.notify.notification import Notification
from gpuscope.notify.senders.json_post import MAX_ATTEMPT_SECONDS, cut
from gpuscope.notify.senders.pagerduty import group_hash

MAX_SUBJECT_CHARACTERS = 500
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_ADDRESS = re.compile(r"[^\s<>@,;:\"()\\]+@[^\s<>@,;:\"()\\]+")


def one_header_line(text: str) -> str:
    return cut(" ".join(_CONTROL.sub(" ", text).split()), MAX_SUBJECT_CHARACTERS)


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

    def message(self, notification: Notification) -> tuple[EmailMessage, str, list[str]]:
        """The mail, and its envelope: the sender's address and the recipients'."""
        config = self._config

        def expand(text: str) -> str:
            return self._messages.expand(text, notification)

        sender, recipients = _addresses(expand(config.sender), "from"), _addresses(expand(config.to), "to")
        if len(sender) != 1:
            raise SendError("from must be exactly one address", may_retry=False)
        mail = EmailMessage(policy=SMTP)
        headers = {name: one_header_line(expand(text)) for name, text in config.headers}
        headers.setdefault("Subject", one_header_line(expand(default_template("email.default.subject"))))
        for name, value in headers.items():
            if name not in ("From", "To"):
                mail[name] = value
        mail["From"], mail["To"] = sender, recipients
        if "Message-Id" not in headers:
            mail["Message-Id"] = self._new_message_id(sender[0].domain)
        mail["Date"] = format_datetime(datetime.fromtimestamp(notification.sent_at, UTC))
        if config.has_threads:
            self._add_thread(mail, notification)
        self._add_bodies(mail, notification)
        return mail, sender[0].addr_spec, [one.addr_spec for one in recipients]

    def _add_thread(self, mail: EmailMessage, notification: Notification) -> None:
        """Refers to a mail that was never sent: mail programs put the replies to it together."""
        moment = datetime.fromtimestamp(notification.sent_at, UTC)
        day = f"{moment:%Y-%m-%d}" if self._config.threads_by_day else ""
        root = f"<alert-{group_hash(notification.group_key)[:16]}-{day}@alertmanager>"
        mail["References"] = root
        mail["In-Reply-To"] = root

    def _add_bodies(self, mail: EmailMessage, notification: Notification) -> None:
        config = self._config
        text = self._messages.expand(config.text, notification) if config.text else plain_body(notification)
        mail.set_content(text.encode("utf-8", "replace").decode(), cte="quoted-printable")
        if config.html:
            page = self._messages.expand(config.html, notification, MessageStyle.HTML)
            mail.add_alternative(
                page.encode("utf-8", "replace").decode(), subtype="html", cte="quoted-printable"
            )

    def send(self, notification: Notification, timeout_seconds: float) -> None:
        mail, sender, recipients = self.message(notification)
        deadline = time.monotonic() + min(timeout_seconds, MAX_ATTEMPT_SECONDS)
        try:
            client = self._connect(deadline)
            try:
                self._prepare(client)
                _limit(client, deadline)
                client.send_message(mail, sender, recipients)
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

    def _connect(self, deadline: float) -> smtplib.SMTP:
        config = self._config
        hello = config.hello or "localhost"
        seconds = max(0.001, deadline - time.monotonic())
        if config.implicit_tls:
            context = config.tls or ssl.create_default_context()
            client: smtplib.SMTP = smtplib.SMTP_SSL(
                config.host, config.port, local_hostname=hello, timeout=seconds, context=context
            )
        else:
            client = smtplib.SMTP(config.host, config.port, local_hostname=hello, timeout=seconds)
        client.ehlo_or_helo_if_needed()
        return client

    def _prepare(self, client: smtplib.SMTP) -> None:
        config = self._config
        if config.require_tls and not config.implicit_tls:
            if not client.has_extn("starttls"):
                raise SendError(
                    f"require_tls is true, but {config.host} does not offer STARTTLS; set require_tls to false "
                    "only if the way there is safe",
                    may_retry=True,
                )
            client.starttls(context=config.tls or ssl.create_default_context())
            client.ehlo()
        if config.auth_username and client.has_extn("auth"):
            mechanisms = client.esmtp_features.get("auth", "").upper().split()
            secret = (
                config.auth_secret if config.auth_secret and "CRAM-MD5" in mechanisms else config.auth_password
            )
            client.login(config.auth_username, secret.reveal())


def _limit(client: smtplib.SMTP, deadline: float) -> None:
    connection = client.sock
    if isinstance(connection, socket.socket):
        connection.settimeout(max(0.001, deadline - time.monotonic()))


def _addresses(text: str, key: str) -> list[Address]:
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
