"""A node that sends by remote write, as *Settings › Add a node* prints it, to `up` and to `server`: a node like
the others, in the live picture, in the commands, in the findings and among the targets."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cramjam
import pytest

from gpuscope import __version__
from gpuscope.history.remote_write.codec import encode_labels, encode_samples
from tests.engines import running
from tests.integration.agent_process import GPUSCOPE, running_agent
from tests.ports import free_port
from tests.waiting import wait_for

STOPPED_SECONDS = 900


@contextmanager
def serving(command: str, data: Path) -> Iterator[str]:
    url = f"http://127.0.0.1:{free_port()}"
    line = [*GPUSCOPE, command, "--listen", url.removeprefix("http://"), "--data", str(data)]
    with running(line, f"{url}/-/healthy"):
        yield url


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def node_of(url: str, name: str) -> Any:
    return next((node for node in get(f"{url}/api/live")["nodes"] if node["name"] == name), None)


def target_of(url: str, instance: str) -> Any:
    targets = get(f"{url}/api/v1/targets")["data"]["activeTargets"]
    return next((one for one in targets if one["labels"]["instance"] == instance), None)


def readiness(url: str) -> str:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=60) as answer:
            return str(answer.read().decode().strip())
    except urllib.error.HTTPError as refusal:
        return f"{refusal.code}: {refusal.read().decode().strip()}"


def has_free_gpu(url: str, node: str) -> bool:
    return any((gpu["node"], gpu["state"]) == (node, "idle") for gpu in get(f"{url}/api/live")["gpus"])


def run(*arguments: str) -> str:
    return subprocess.run([*GPUSCOPE, *arguments], capture_output=True, text=True, timeout=60).stdout


def push_stopped_node(url: str, stopped_at: float) -> None:
    """The last samples of a node that has stopped."""
    common = {"job": "gpuscope", "instance": "node8"}
    gpu = {**common, "uuid": "GPU-8", "gpu": "0"}
    series = [
        ("gpuscope_agent_info", {**common, "node": "node8", "version": "0.1.0"}, 1.0),
        ("gpuscope_agent_snapshot_timestamp_seconds", common, stopped_at),
        ("gpuscope_gpu_info", {**gpu, "node": "node8", "model": "NVIDIA L4"}, 1.0),
    ]
    samples = [
        (encode_labels({**labels, "__name__": name}.items()), int(stopped_at * 1000), value)
        for name, labels, value in series
    ]
    body = bytes(cramjam.snappy.compress_raw(encode_samples(samples)))
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/write", body, headers)) as answer:
        assert answer.status == 204


@pytest.mark.parametrize("command", ["up", "server"])
def test_a_pushed_node_is_a_node(command: str, tmp_path: Path) -> None:
    stopped_at = time.time() - STOPPED_SECONDS
    with serving(command, tmp_path) as url:
        push_stopped_node(url, stopped_at)
        # Without a GPU here, and those of node8 are gone; a server waits for none.
        if command == "server" or not Path("/dev/nvidiactl").exists():
            assert readiness(url) == ("503: no GPU data yet" if command == "up" else "gpuscope is ready.")
        pushes = ("--remote-write", f"{url}/api/v1/write", "--remote-write-interval", "1s")
        with running_agent("--source", "demo", "--node", "node7", "--scenario", "xid79", *pushes):
            node = wait_for(lambda: node_of(url, "node7"), "the pushed node in the live picture")
            assert (node["instance"], node["job"], node["version"]) == ("node7", "gpuscope", __version__)
            assert abs(node["taken_at"] - time.time()) < 30
            assert "gone" not in node
            assert readiness(url) == "gpuscope is ready."
            target = target_of(url, "node7")
            assert (target["health"], target["lastError"]) == ("up", "")
            picture = get(f"{url}/api/live")
            assert sum(gpu["node"] == "node7" for gpu in picture["gpus"]) == 8
            # All from the same picture, so that it is enough to see that they ask for it.
            assert "node7" in run("snapshot", "--server", url)
            # Whether a simulated node has a free GPU depends on the time of day.
            wait_for(
                lambda: ("node7" in run("free", "--server", url)) == has_free_gpu(url, "node7"),
                "the free GPUs of the live picture",
            )
            wait_for(
                lambda: any(one["node"] == "node7" for one in get(f"{url}/api/findings")["findings"]),
                "a finding of the pushed node",
            )
    with serving(command, tmp_path) as url:  # it has stopped, and this process never saw it
        gone = wait_for(lambda: node_of(url, "node8"), "the node that has stopped")["gone"]
        assert abs(gone["since"] - stopped_at) < 61
        (gpu,) = [one for one in get(f"{url}/api/live")["gpus"] if one["node"] == "node8"]
        assert (gpu["uuid"], gpu["state"]) == ("GPU-8", "gone")
        target = target_of(url, "node8")
        assert (target["health"], target["lastError"][:15]) == ("down", "no sample since")
        assert "node8" not in run("free", "--server", url)
