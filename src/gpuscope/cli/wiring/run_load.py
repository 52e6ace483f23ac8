"""Runs a load: one child process for each GPU, while this process reads the same GPUs as the agent does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import FrameType
from typing import IO

from gpuscope.base.clock import Clock, SystemClock
from gpuscope.cli.wiring.run_agent import CollectorThreads
from gpuscope.model.readings import Device, Instance
from gpuscope.vendors.nvidia.load.comparison import LoadedGpu, find_reading
from gpuscope.vendors.nvidia.load.device_process import DeviceLoad, Progress
from gpuscope.vendors.nvidia.load.kinds import KINDS

END_SECONDS = 5.0
"""How long a child may take to end after its time; then it is killed."""
MAX_LINE_CHARACTERS = 4096


class ChildLoad:
    """One GPU's child process, and the thread that reads what it reports."""

    def __init__(self, gpu: LoadedGpu, load: DeviceLoad, peer: LoadedGpu | None) -> None:
        visible = ",".join([gpu.uuid, peer.uuid] if peer is not None else [gpu.uuid])
        self.gpu = gpu
        self._child = subprocess.Popen(
            [sys.executable, "-m", "gpuscope.vendors.nvidia.load.device_process", json.dumps(asdict(load))],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
            start_new_session=True,  # Ctrl-C reaches this process, which stops the children in order
        )
        self._output: IO[str] = self._child.stdout  # type: ignore[assignment]  # a pipe: see above
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while line := self._output.readline(MAX_LINE_CHARACTERS):
            report = json.loads(line)
            if "error" in report:
                self.gpu.error = report["error"]
            else:
                self.gpu.progress.append(Progress(**report))

    def is_running(self) -> bool:
        return self._child.poll() is None

    def stop(self) -> None:
        if self.is_running():
            self._child.terminate()

    def finish(self, stopped: bool) -> None:
        try:
            code = self._child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        self._reader.join(END_SECONDS)
        if code and not self.gpu.error and not stopped:
            self.gpu.error = f"the load ended with code {code}"


def run_load(
    running: CollectorThreads,
    gpus: Sequence[LoadedGpu],
    load: DeviceLoad,
    show: Callable[[float, LoadedGpu, Device | Instance | None], None],
    clock: Clock | None = None,
) -> bool:
    """Loads the GPUs until the time is over or a signal comes; whether it ran to its end."""
    clock = clock or SystemClock()
    stop = threading.Event()
    previous = {number: _stop_on(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    pairs = KINDS[load.kind].gpus_needed > 1
    children = [ChildLoad(gpu, load, _peer_of(gpu, gpus) if pairs else None) for gpu in gpus]
    began_at = clock.monotonic()
    try:
        while not stop.wait(max(0.0, 1.0 - (clock.monotonic() - began_at) % 1.0)):
            snapshot = running.collector.tick()
            elapsed = clock.monotonic() - began_at
            for child in children:
                reading = find_reading(snapshot, child.gpu.uuid)
                if reading is not None and child.gpu.progress and child.is_running():
                    child.gpu.samples.append((child.gpu.progress[-1].elapsed, reading))
                show(elapsed, child.gpu, reading)
            if not any(child.is_running() for child in children):
                break
    finally:
        for child in children:
            child.stop()
        for child in children:
            child.finish(stop.is_set())
        for number, handler in previous.items():
            signal.signal(number, handler)
    return not stop.is_set()


def _peer_of(gpu: LoadedGpu, gpus: Sequence[LoadedGpu]) -> LoadedGpu | None:
    others = [other for other in gpus if other is not gpu]
    return others[0] if others else None


def _stop_on(number: int, stop: threading.Event) -> Callable[[int, FrameType | None], object] | int | None:
    return signal.signal(number, lambda *_: stop.set())
