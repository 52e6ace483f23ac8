"""Attacks by the engine behind `--store`: answers that are large, or small and large once decoded."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs

import orjson

from gpuscope.serve.live.gone_nodes import MAX_INSTANCES
from tests.hostile.catalogue import Attack
from tests.hostile.victim import MIB, Victim, Watch
from tests.local_server import QuietHandler

READERS = ("/api/live", "/api/report?since=7d", "/api/job?id=1&since=7d", "/api/findings?since=31d")
"""Each of them reads answers of the engine; reports do it in threads of their own."""
EMPTY = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
OTHER_CLIENT = "/api/v1/query?query=up"
BATCH = 2_000
Elements = Callable[[int, bytes, bytes], bytes]
"""Some elements of a result, from their number, the kind of result and a time of it."""


def _engine(elements: Elements, size: int, queries: str = "") -> type[QuietHandler]:
    """Answers the other client, and queries that contain `queries` with `size` bytes of elements."""

    class HostileEngine(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == OTHER_CLIENT:
                self.answer(EMPTY)
            else:
                self._send_large({})

        def do_POST(self) -> None:
            form = parse_qs(self.read_body().decode())
            if queries in form.get("query", [""])[0]:
                self._send_large(form)
            else:
                self.answer(EMPTY)

        def _send_large(self, form: dict[str, list[str]]) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("connection", "close")
            self.end_headers()
            is_list = self.path.startswith(("/api/v1/series", "/api/v1/label"))
            kind = b"series" if is_list else b"matrix" if "step" in form else b"vector"
            at = form.get("start", ["1"])[0].encode()
            within = b"" if is_list else b'{"resultType":"%b","result":' % kind
            with contextlib.suppress(OSError):  # it was refused
                sent = self.wfile.write(b'{"status":"success","data":' + within + b"[")
                for number in itertools.count():
                    sent += self.wfile.write(elements(number, kind, at))
                    if sent > size:
                        break
                last = elements(number + 1, kind, at)[:-1]
                self.wfile.write(last + (b"]}" if is_list else b"]}}"))

    return HostileEngine


def _many_series(number: int, kind: bytes, at: bytes) -> bytes:
    first = number * BATCH
    labels = [b'{"instance":"%x","uuid":"%x"}' % (one, one) for one in range(first, first + BATCH)]
    if kind == b"series":
        return b",".join(labels) + b","
    points = b'"value":[%b,"1"]' if kind == b"vector" else b'"values":[[%b,"1"]]'
    return b"".join(b'{"metric":%b,%b},' % (one, points % at) for one in labels)


def _many_gpus(number: int, kind: bytes, at: bytes) -> bytes:
    first = number * BATCH
    labels = b'"__name__":"gpuscope_gpu_info","instance":"%x","uuid":"GPU-%x"'
    gpus = [labels % (one // 8, one) for one in range(first, first + BATCH)]
    if kind == b"series":
        return b"".join(b"{%b}," % one for one in gpus)
    points = b'"value":[%b,"1"]' if kind == b"vector" else b'"values":[[%b,"1"]]'
    return b"".join(b'{"metric":{%b},%b},' % (one, points % at) for one in gpus)


def _many_lost_nodes(number: int, kind: bytes, at: bytes) -> bytes:
    """Nodes that have just sent their last sample, whichever the query asks for."""
    first, now = number * BATCH, int(time.time())
    labels = b'"__name__":"gpuscope_agent_info","instance":"%x","node":"%x"'
    nodes = [labels % (one, one) for one in range(first, first + BATCH)]
    return b"".join(b'{"metric":{%b},"value":[%d,"%d"]},' % (one, now, now) for one in nodes)


def _dense_text(number: int, kind: bytes, at: bytes) -> bytes:
    return b'{"a":"b"},' * BATCH


def _read_all(victim: Victim, watch: Watch, paths: tuple[str, ...] = READERS) -> None:
    with ThreadPoolExecutor(2 * len(paths)) as clients:
        answers = [clients.submit(victim.get, path) for path in paths * 2]
        watch.meanwhile()
        statuses = {answer.result()[0] for answer in answers}
    assert statuses <= {200, 404, 422, 502, 503}, statuses
    assert "Traceback" not in victim.log()


def _read_many_series(victim: Victim, watch: Watch) -> None:
    _read_all(victim, watch)
    assert victim.limit_reached("engine_max_answers_bytes") > 0


def _read_many_gpus(victim: Victim, watch: Watch) -> None:
    def reaches_the_limit() -> bool:
        status, body = victim.get("/api/live")
        # The findings over time read at the same moment, and share the memory of answers.
        if status == 503:
            assert b"engine_max_answers_bytes" in body, body[:300]
            return False
        assert orjson.loads(body)["left_out"] > 0, body[:300]
        return victim.limit_reached("live_max_subjects") > 0

    _read_all(victim, watch, READERS[:1])
    victim.until(reaches_the_limit, "a live picture that leaves nodes out")


def _read_lost_nodes(victim: Victim, watch: Watch) -> None:
    def shown() -> int:
        status, body = victim.get("/api/live")
        assert status == 200, body[:300]
        return len(orjson.loads(body)["nodes"])

    assert shown() <= 2 * MAX_INSTANCES
    watch.meanwhile()
    victim.until(lambda: shown() >= 4 * MAX_INSTANCES, "more nodes in later pictures")
    assert "Traceback" not in victim.log()


def _attack(
    name: str,
    sends: str,
    elements: Elements,
    run: Callable[[Victim, Watch], None],
    size: int = 120 * MIB,
    queries: str = "",
    holds: str = "answers that are read at the same time share one budget of memory",
) -> Attack:
    return Attack(
        name,
        sends,
        holds,
        run,
        ("server", "--store", "{engine}"),
        engine=_engine(elements, size, queries),
        question=OTHER_CLIENT,
        slow=True,
    )


ATTACKS = (
    _attack(
        "an engine with millions of series",
        "120 MB of small series in answer to each of four requests of the page at once",
        _many_series,
        _read_many_series,
    ),
    _attack(
        "an engine with many GPUs",
        "130,000 GPUs in answer to the request of the page for the live picture",
        _many_gpus,
        _read_many_gpus,
        13 * MIB,
        '{__name__=~"',  # those of the live picture
        "the live picture leaves out what live_max_subjects does not allow; `/api/live` says how many nodes",
    ),
    _attack(
        "an engine with many lost nodes",
        "30,000 nodes that have left within the day, in each answer to what the page looks up of them",
        _many_lost_nodes,
        _read_lost_nodes,
        3 * MIB,
        "(gpuscope_agent_info",
        "`/api/live` does not wait until all are looked up: each picture has 100 more",
    ),
    _attack(
        "an engine with dense JSON",
        "120 MB of small objects, which are 3.6 GB once decoded, to four requests of the page at once",
        _dense_text,
        _read_all,
    ),
)
