"""Hands mails over to a server by SMTP: STARTTLS or implicit TLS, log-in, one time limit for all of it.

Every failure is a SendError, which says whether another attempt may help.
"""

from __future__ import annotations

import logging
import smtplib
import socket
import ssl
import time
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any

from gpuscope.judge.notify.channel import MAX_ATTEMPT_SECONDS, NO_SECRET, SecretText, SendError

log = logging.getLogger("gpuscope.notify")
CRAM_MD5 = "CRAM-MD5"
MAX_REPLY_BYTES = 64 << 10
"""Of all replies to one mail; a server sends a few hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpServer:
    host: str
    port: int
    hello: str = "localhost"
    auth_username: str = ""
    auth_password: SecretText = NO_SECRET
    auth_secret: SecretText = NO_SECRET
    """For CRAM-MD5; the password is for the other ways to log in."""
    auth_identity: str = ""
    require_tls: bool = True
    implicit_tls: bool = False
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    tls_server_name: str = ""


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


def deliver_mail(
    server: SmtpServer, mail: EmailMessage, sender: str, recipients: list[str], timeout_seconds: float
) -> list[str]:
    """Returns the recipients that the server refused. Raises SendError, also if it refused all of them."""
    deadline = time.monotonic() + min(timeout_seconds, MAX_ATTEMPT_SECONDS)
    try:
        client = _connect(server, deadline)
        try:
            _prepare(server, client)
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
            f"no answer of {server.host} in time", may_retry=True, reason="contextDeadlineExceeded"
        ) from None
    except (OSError, UnicodeError) as error:
        raise SendError(f"{server.host}: {error}", may_retry=isinstance(error, OSError)) from None
    if refused:
        log.error("mail: %s refused the recipients %s", server.host, ", ".join(refused)[:200])
    return refused


def _connect(server: SmtpServer, deadline: float) -> smtplib.SMTP:
    hello = server.hello or "localhost"
    seconds = max(0.001, deadline - time.monotonic())

    class BoundedSmtp(_BoundedReplies, smtplib.SMTP):
        reply_deadline = deadline
        auth_identity = server.auth_identity

    class BoundedSmtps(_BoundedReplies, smtplib.SMTP_SSL):
        reply_deadline = deadline
        auth_identity = server.auth_identity

    if server.implicit_tls:
        client: smtplib.SMTP = BoundedSmtps(
            server.host, server.port, local_hostname=hello, timeout=seconds, context=_tls(server)
        )
    else:
        client = BoundedSmtp(server.host, server.port, local_hostname=hello, timeout=seconds)
    client.ehlo_or_helo_if_needed()
    return client


def _tls(server: SmtpServer) -> Any:
    return _NamedContext(server.tls or ssl.create_default_context(), server.tls_server_name)


def _prepare(server: SmtpServer, client: smtplib.SMTP) -> None:
    if server.require_tls and not server.implicit_tls:
        if not client.has_extn("starttls"):
            raise SendError(
                f"require_tls is true, but {server.host} does not offer STARTTLS; set require_tls to false "
                "only if the way there is safe",
                may_retry=True,
            )
        client.starttls(context=_tls(server))
        client.ehlo()
    if server.auth_username and client.has_extn("auth"):
        offered = client.esmtp_features["auth"].upper().split()
        others = [way for way in offered if way != CRAM_MD5]
        if server.auth_secret and CRAM_MD5 in offered:
            chosen, secret = [CRAM_MD5], server.auth_secret
        else:
            # smtplib would try CRAM-MD5 first: with a password each mail would be a failed log-in.
            chosen, secret = others or offered, server.auth_password
        client.esmtp_features["auth"] = " ".join(chosen)
        client.login(server.auth_username, secret.reveal())


def _limit(client: smtplib.SMTP, deadline: float) -> None:
    connection = client.sock
    if isinstance(connection, socket.socket):
        connection.settimeout(max(0.001, deadline - time.monotonic()))


def _reason(error: smtplib.SMTPException) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        answer = error.smtp_error
        text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
        return f"the mail server answered {error.smtp_code} {' '.join(text.split())[:200]}"
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return f"the mail server refused {', '.join(error.recipients)[:200]}"
    return str(error)[:200]
