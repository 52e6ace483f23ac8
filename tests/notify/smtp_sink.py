"""A small SMTP server for tests: EHLO, STARTTLS or implicit TLS, AUTH PLAIN or CRAM-MD5, keeps every mail."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import BinaryIO

CHALLENGE = b"<1.2@sink>"


@dataclass
class Mail:
    sender: str = ""
    recipients: list[str] = field(default_factory=list)
    content: bytes = b""
    is_encrypted: bool = False
    user: str = ""
    hello: str = ""
    logins: list[str] = field(default_factory=list)
    """The mechanisms that were tried."""


class SmtpSink:
    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        *,
        refuse: str = "",
        logins: str = "",
        is_implicit: bool = False,
    ) -> None:
        self.mails: list[Mail] = []
        self._tls = tls
        self._refuse = refuse
        """The command that is answered with 451, as DATA, or the address."""
        self._logins = logins
        """The mechanisms on offer, as `PLAIN CRAM-MD5`."""
        self._is_implicit = is_implicit
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accepted(self, connection: socket.socket) -> socket.socket:
        if not self._is_implicit:
            return connection
        assert self._tls is not None
        return self._tls.wrap_socket(connection, server_side=True)

    def _talk(self, connection: socket.socket) -> None:
        mail = Mail(is_encrypted=self._is_implicit)

        def say(text: str) -> None:
            connection.sendall(text.encode() + b"\r\n")

        try:
            connection = self._accepted(connection)
            file = connection.makefile("rb")
            say("220 sink ready")
            while line := file.readline():
                words = line.decode().strip()
                command = words.split(" ")[0].upper()
                address = words.partition("<")[2].partition(">")[0]
                if self._refuse and self._refuse in (command, address):
                    say("451 try again later")
                elif command == "EHLO":
                    mail.hello = words.split(" ")[1]
                    offers = ["STARTTLS"] if self._tls and not mail.is_encrypted else []
                    offers += [f"AUTH {self._logins}"] if self._logins else []
                    say("\r\n".join([f"250-{one}" for one in ["sink", *offers]] + ["250 8BITMIME"]))
                elif command == "STARTTLS" and self._tls:
                    say("220 go on")
                    connection = self._tls.wrap_socket(connection, server_side=True)
                    file, mail.is_encrypted = connection.makefile("rb"), True
                elif command == "AUTH":
                    _log_in(mail, words.split(" ")[1:], file, say)
                elif command == "MAIL":
                    mail.sender = address
                    say("250 ok")
                elif command == "RCPT":
                    mail.recipients.append(address)
                    say("250 ok")
                elif command == "DATA":
                    say("354 go on")
                    lines = []
                    while (part := file.readline()) not in (b".\r\n", b""):
                        lines.append(part[1:] if part.startswith(b"..") else part)
                    mail.content = b"".join(lines)
                    self.mails.append(mail)
                    say("250 kept")
                else:
                    say("221 bye" if command == "QUIT" else "250 ok")
        except OSError:
            pass
        finally:
            connection.close()


def _log_in(mail: Mail, words: list[str], file: BinaryIO, say: Callable[[str], None]) -> None:
    mechanism, *answer = words
    mail.logins.append(mechanism)
    if not answer:
        say(f"334 {base64.b64encode(CHALLENGE).decode()}")
        answer = [file.readline().decode().strip()]
    mail.user = base64.b64decode(answer[0]).replace(b"\0", b" ").decode().strip()
    say("235 welcome")


@contextmanager
def running_smtp(
    tls: ssl.SSLContext | None = None, *, refuse: str = "", logins: str = "", is_implicit: bool = False
) -> Iterator[SmtpSink]:
    sink = SmtpSink(tls, refuse=refuse, logins=logins, is_implicit=is_implicit)
    thread = threading.Thread(target=sink.serve, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        sink.close()
        thread.join()


@contextmanager
def serving_once(reply: bytes, pause_seconds: float = 0.0) -> Iterator[int]:
    """A server that sends this to its first client, with a pause after each byte if there is one."""
    stopping = threading.Event()

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                for at in range(0, len(reply), 1 if pause_seconds else len(reply)):
                    connection.sendall(reply[at : at + 1] if pause_seconds else reply)
                    if stopping.wait(pause_seconds):
                        return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stopping.set()
            thread.join(10)
