"""Reads the JSON of an instant vector by its text, so that label sets seen before are not decoded again.

Input: the answer of `/api/v1/query` in batches. Output: a `Vector` with `SharedLabels`. A batch whose text has
another form than Prometheus and VictoriaMetrics write is read as JSON. A live picture repeats the same series
every few seconds, and decoding their labels is most of the work of reading it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

from gpuscope.history.engines.answer_memory import AnswerMemory, MemoryShare
from gpuscope.history.engines.answer_text import ELEMENT_START
from gpuscope.history.engines.json_results import VectorRows, read_vector
from gpuscope.history.engines.query_engine import check_size
from gpuscope.history.engines.shared_labels import LabelDict, RecentLabels, SharedLabels
from gpuscope.history.promql.result import Vector

# In valid JSON these cannot be inside a string: a quote there has a backslash before it.
_BETWEEN: Final = b'"]},' + ELEMENT_START
_BEFORE_TIME: Final = b',"value":['
_END: Final = b'"]}'
ROW_BYTES: Final = 125
"""A sample of the live picture, without its labels."""


class VectorText:
    """Keeps the label sets of one caller's answers. `share` counts them, and the rows of the current answer."""

    def __init__(self, memory: AnswerMemory | None = None) -> None:
        memory = memory or AnswerMemory()
        self.share = memory.share()
        self.labels = RecentLabels(self._decode, memory.max_bytes // 2)
        self._values: dict[str, str] = {}

    def begin(self, max_series: int | None = None) -> TextRows:
        """For the batches of one answer."""
        self.labels.begin_answer()
        return TextRows(self.labels, max_series, self.share)

    def end(self, *, is_read: bool) -> None:
        """After an answer that could not be read nothing is known, so that a smaller one can be read."""
        if not is_read:
            self.labels.clear()
            self._values = {}
        self.share.resize(self.labels.memory_bytes)

    def _decode(self, text: bytes) -> LabelDict:
        decoded = orjson.loads(text)
        if not isinstance(decoded, dict) or not all(isinstance(value, str) for value in decoded.values()):
            raise ValueError("not a label set")
        if len(self._values) > 2 * len(self.labels) + 1024:  # processes come and go
            self._values = {}
        share = self._values.setdefault  # a UUID is in twenty series
        return {name: share(value, value) for name, value in decoded.items()}


class TextRows:
    def __init__(self, labels: RecentLabels, max_series: int | None, share: MemoryShare) -> None:
        self._recent = labels
        self._share = share
        self._max_series = max_series
        self._dicts: list[LabelDict] = []
        self._values: list[float] = []
        self._time_ms: int | None = None
        self.batches_read_as_json = 0

    def add(self, batch: bytes) -> int:
        """The memory that the share does not have yet: of the rows, and of label sets that are kept."""
        try:
            dicts, values, time_ms = self._split(batch)
        except (ValueError, OverflowError):
            dicts, values, time_ms = self._read_json(batch)
        check_size(len(self._dicts) + len(dicts), self._max_series, "series")
        if self._time_ms is None:
            self._time_ms = time_ms
        self._dicts += dicts
        self._values += values
        return self._recent.memory_bytes + ROW_BYTES * len(self._dicts) - self._share.held_bytes

    def to_vector(self, frame: Mapping[str, Any]) -> Vector:
        if self._time_ms is None:  # a scalar, an empty vector, or another form of JSON
            return read_vector(frame, self._max_series)
        empty, values = read_vector(frame), np.array(self._values, dtype=np.float64)
        return Vector(self._time_ms, SharedLabels(self._dicts), values, empty.warnings, empty.infos)

    def _split(self, batch: bytes) -> tuple[list[LabelDict], list[float], int]:
        if not batch.startswith(ELEMENT_START) or not batch.endswith(_END):
            raise ValueError("another form")
        pieces = batch[len(ELEMENT_START) : -len(_END)].split(_BETWEEN)
        time_text = pieces[0].rpartition(_BEFORE_TIME)[2].partition(b",")[0]
        # All samples of an instant vector have the same time, so the text before each value is the same.
        before_value = _BEFORE_TIME + time_text + b',"'
        rows = [piece.rpartition(before_value) for piece in pieces]
        values = [float(row[2]) for row in rows]
        return self._recent.find([row[0] for row in rows]), values, round(float(time_text) * 1000)

    def _read_json(self, batch: bytes) -> tuple[list[LabelDict], list[float], int]:
        self.batches_read_as_json += 1
        rows = VectorRows()
        rows.add(batch)
        vector = rows.to_vector({"data": {"resultType": "vector", "result": []}})
        # By another text, so that these are bounded and kept as the others are.
        dicts = self._recent.find([orjson.dumps(dict(labels)) for labels in vector.labels])
        return dicts, vector.values.tolist(), vector.time_ms
