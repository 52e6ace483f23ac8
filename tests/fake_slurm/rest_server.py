"""slurmrestd's recorded answers, and slurmctld's metrics pages, over HTTP or a UNIX socket."""

from __future__ import annotations

import socketserver
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.fake_slurm import CAPTURES
from tests.local_server import serving_http, serving_in_thread

API = {"22.05": "v0.0.38", "24.11": "v0.0.42", "26.05": "v0.0.45"}


class _UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def rest_answers(version: str) -> dict[str, bytes]:
    """By path, as slurmrestd of this version has them."""
    files = (CAPTURES / version / "rest").glob("*.json")
    return {f"/slurm/{API[version]}/{path.stem}": path.read_bytes() for path in files}


def metrics_answers() -> dict[str, bytes]:
    files = (CAPTURES / "26.05" / "metrics").glob("*.txt")
    pages = {f"/metrics/{path.stem}": path.read_bytes() for path in files}
    return {"/metrics": b"slurmctld index of metrics endpoints:\n", **pages}


def _handler(
    answers: Mapping[str, bytes], asked: list[tuple[str, str]], status: int
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("X-SLURM-USER-TOKEN", "")))
            body = answers.get(self.path)
            self.send_response(404 if body is None else status)
            self.end_headers()
            self.wfile.write(b"Unable to find requested URL." if body is None else body)

        def address_string(self) -> str:
            return "a test"  # a UNIX socket has no address

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def serving(
    answers: Mapping[str, bytes], asked: list[tuple[str, str]], socket: Path | None = None, status: int = 200
) -> Iterator[str]:
    """The address to give to `--slurm-rest` or `--slurm-metrics`."""
    handler = _handler(answers, asked, status)
    if socket is None:
        with serving_http(handler) as port:
            yield f"http://127.0.0.1:{port}"
        return
    with _UnixServer(str(socket), handler) as server, serving_in_thread(server):
        yield str(socket)
