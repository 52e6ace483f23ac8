"""Docker's and Podman's word on containers, and the prolog's on jobs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.errors import SourceError
from gpuscope.owners.attribute import ContainerName
from gpuscope.owners.containers import ContainerNames, decode_inspect
from gpuscope.owners.job_files import JobFiles, read_job_files
from gpuscope.readings import ABSENT

ID = "a" * 64


@contextmanager
def docker(path: Path, known: dict[str, object]) -> Iterator[list[str]]:
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
        names = ContainerNames([str(tmp_path / "d.sock")])
        assert names.want(frozenset([ID, "b" * 64])) == {}
        names.read(frozenset())
        names.read(frozenset())
        expected = {ID: ContainerName("trainer", "pytorch:2"), "b" * 64: ContainerName()}
        assert names.want(frozenset([ID])) == expected
        assert len(asked) == 2
        names.read(frozenset())
        assert names.known.keys() == {ID}


def test_a_socket_that_is_not_there_is_said_and_asked_again(tmp_path: Path) -> None:
    names = ContainerNames([str(tmp_path / "d.sock")])
    names.want(frozenset([ID]))
    with pytest.raises(SourceError, match=r"d\.sock"):
        names.read(frozenset())
    with docker(tmp_path / "d.sock", {ID: {"Name": "/x"}}):
        names.read(frozenset())
    assert names.known == {ID: ContainerName("x", ABSENT)}


@given(st.one_of(st.binary(max_size=60), st.just(b"[1]"), st.just(b'{"Name": {}, "Config": []}')))
def test_any_answer(body: bytes) -> None:
    with suppress(SourceError):
        decode_inspect(body)


def test_job_files_of_both_kinds(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("24\n\n24\n25\n")  # as dcgm-exporter wants them
    (tmp_path / "2.7").write_text("26")
    (tmp_path / "GPU-5a5a7118-e550-79a1-597e-7631e126c57a").write_text("27 1001\n")  # as jobstats writes them
    (tmp_path / "1").write_text("28_3 1001 alice ml gpu 1700000000\nnot a job\n")
    (tmp_path / "README").write_text("99\n")
    (tmp_path / "3").mkdir()
    claims = [(claim.device_id, claim.job) for claim in read_job_files(str(tmp_path))]
    assert claims == [
        ("0", "24"),
        ("0", "25"),
        ("1", "28_3"),
        ("2.7", "26"),
        ("GPU-5a5a7118-e550-79a1-597e-7631e126c57a", "27"),
    ]


def test_a_missing_folder_is_absent_not_empty(tmp_path: Path) -> None:
    files = JobFiles(str(tmp_path / "none"))
    with pytest.raises(SourceError, match="none"):
        files.read(frozenset())
    assert files.claims is ABSENT
    (tmp_path / "none").mkdir()
    files.read(frozenset())
    assert files.claims == ()
