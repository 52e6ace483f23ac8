"""Names and images of containers from Docker's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.owners.attribution import ContainerInfo
from gpuscope.agent.owners.container_runtimes import DockerReader, decode_inspect
from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT

ID = "a" * 64


@contextmanager
def docker(path: Path, known: Mapping[str, object]) -> Iterator[list[str]]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            told = known.get(self.path.split("/")[2])
            body = json.dumps(told or {"message": "No such container"}).encode()
            self.send_response(200 if told else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


def test_a_container_is_asked_for_once_and_forgotten_when_it_is_gone(tmp_path: Path) -> None:
    told = {ID: {"Name": "/trainer", "Config": {"Image": "pytorch:2"}}}
    with docker(tmp_path / "d.sock", told) as asked:
        reader = DockerReader([str(tmp_path / "d.sock")])
        reader.want(frozenset([ID, "b" * 64]))
        known = reader.read().value
        assert known == {ID: ContainerInfo("trainer", "pytorch:2"), "b" * 64: ContainerInfo()}
        assert reader.read().value is known
        assert len(asked) == 2
        reader.want(frozenset([ID]))
        assert reader.read().value.keys() == {ID}


def test_a_socket_that_is_not_there_is_said_and_asked_again(tmp_path: Path) -> None:
    reader = DockerReader([str(tmp_path / "d.sock")])
    reader.want(frozenset([ID]))
    with pytest.raises(SourceError, match=r"d\.sock"):
        reader.read()
    with docker(tmp_path / "d.sock", {ID: {"Name": "/x"}}):
        assert reader.read().value == {ID: ContainerInfo("x", ABSENT)}


@given(st.one_of(st.binary(max_size=60), st.just(b"[1]"), st.just(b'{"Name": {}, "Config": []}')))
def test_any_answer(body: bytes) -> None:
    with suppress(SourceError):
        decode_inspect(body)
