"""An agent's snapshots, pushed: through the queue, over a socket, into a store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.cli.wiring import run_agent as wiring
from gpuscope.cli.wiring.remote_write import sending_snapshots
from gpuscope.history.remote_write.receiver import Receiver
from gpuscope.history.remote_write.sender import build_queues
from gpuscope.history.store import Store
from gpuscope.model.exposition.text import encode_text
from tests.fakes import make_settings
from tests.scrape.exporters import serving

DEMO = make_settings(source="demo", node="n1", demo_gpus=2, remote_write_interval=0.1)


def into(receiver: Receiver, arrived: threading.Event) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        received = receiver.take(request.rfile.read(int(request.headers["Content-Length"])), "agent")
        request.send_response(400 if received.refused else 204)
        request.send_header("Content-Length", "0")
        request.end_headers()
        arrived.set()

    return answer


def test_a_demo_agents_numbers_arrive_in_a_store(tmp_path: Path) -> None:
    arrived = threading.Event()
    with Store(tmp_path / "data") as store:
        receiver = Receiver(store)
        with serving({"/api/v1/write": into(receiver, arrived)}) as address:
            settings = replace(DEMO, remote_write=(f"http://{address}/api/v1/write",))
            running = wiring.CollectorThreads(wiring.build_collector(settings, ("native",)))
            with sending_snapshots(settings, running.collector, ("native",)) as sender:
                snapshot = wiring.read_once(running)
                assert sender is not None
            assert arrived.wait(10), "what is queued goes out when the agent stops"
            assert b"gpuscope_remote_write_dropped_samples_total" in encode_text(sender.to_families(snapshot))
        assert receiver.refused == {}
        assert store.label_values("instance") == ["n1"]
        assert store.label_values("job") == ["gpuscope"]
        names = set(store.label_values("__name__"))
        assert {"up", "gpuscope_gpu_power_watts"} <= names


def test_nothing_without_a_receiver() -> None:
    running = wiring.CollectorThreads(wiring.build_collector(DEMO, ("native",)))
    with sending_snapshots(DEMO, running.collector, ("native",)) as sender:
        assert sender is None


def test_several_receivers_share_one_family_each() -> None:
    queues = build_queues(replace(DEMO, remote_write=("http://a/w", "http://u:secret@b/w")))
    assert queues is not None
    text = encode_text(queues.families()).decode()
    assert text.count("# TYPE gpuscope_remote_write_sent_samples_total") == 1
    assert 'gpuscope_remote_write_sent_samples_total{url="http://b/w"} 0' in text
    assert "secret" not in text


def test_a_wrong_receiver_is_told() -> None:
    with pytest.raises(UsageError, match="--remote-write"):
        build_queues(replace(DEMO, remote_write=("vm:8428",)))
