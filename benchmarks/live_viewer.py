"""A viewer of the live picture: reads `/api/live/stream`, compressed, as the page does."""

from __future__ import annotations

import http.client
import threading
import time
import zlib


class LiveViewer(threading.Thread):
    """Reads events until stopped; `seconds` are the times between two of them."""

    def __init__(self, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._port, self._stop_asking = port, stop
        self.seconds: list[float] = []
        self.bytes_received = 0
        """As sent: compressed."""

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        connection.request("GET", "/api/live/stream", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"/api/live/stream: {answer.status}")
        unpack = zlib.decompressobj(wbits=31)
        before = time.perf_counter()
        while not self._stop_asking.is_set():
            received = answer.read1(1 << 20)
            if not received and not self._stop_asking.is_set():
                raise RuntimeError("/api/live/stream ended")
            self.bytes_received += len(received)
            events = unpack.decompress(received).count(b"\ndata: ")
            if events:
                now = time.perf_counter()
                self.seconds += [(now - before) / events] * events
                before = now
        connection.close()
