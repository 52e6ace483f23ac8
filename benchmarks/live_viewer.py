"""A viewer of the live picture: reads `/api/live/stream`, compressed, as the page does."""

from __future__ import annotations

import http.client
import re
import threading
import time
import zlib

_EVENT_ID = re.compile(rb"^id: (\S+)\n", re.MULTILINE)


class LiveViewer(threading.Thread):
    """Reads events until stopped; `seconds` are the times between two of them. The server ends a stream after
    some minutes: the viewer then resumes it, as the page does."""

    def __init__(self, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._port, self._stop_asking = port, stop
        self._last_event_id = ""
        self.seconds: list[float] = []
        self.bytes_received = 0
        """As sent: compressed."""

    def run(self) -> None:
        while not self._stop_asking.is_set():
            self._read_stream()

    def _read_stream(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        headers = {"Accept-Encoding": "gzip"}
        if self._last_event_id:
            headers["Last-Event-ID"] = self._last_event_id
        connection.request("GET", "/api/live/stream", headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"/api/live/stream: {answer.status}")
        unpack = zlib.decompressobj(wbits=31)
        before = time.perf_counter()
        while not self._stop_asking.is_set():
            received = answer.read1(1 << 20)
            if not received:
                break
            self.bytes_received += len(received)
            text = unpack.decompress(received)
            for event_id in _EVENT_ID.findall(text):
                self._last_event_id = event_id.decode()
            events = len(_EVENT_ID.findall(text))  # pictures and differences; the clock has no id
            if events:
                now = time.perf_counter()
                self.seconds += [(now - before) / events] * events
                before = now
        connection.close()
