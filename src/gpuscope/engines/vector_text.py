"""Reads the JSON of an instant vector by its text, so that label sets seen before are not decoded again.

Input: the body of `/api/v1/query`. Output: a `Vector` with `SharedLabels`, or None where the text has another
form than Prometheus and VictoriaMetrics write; then it is read as JSON. A live picture repeats the same series
every few seconds, and decoding their labels is most of the work of reading it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import orjson

from gpuscope.engines.json_results import read_vector
from gpuscope.engines.query_engine import check_size
from gpuscope.engines.shared_labels import LabelDict, RecentLabels, SharedLabels
from gpuscope.promql.result import Vector

# In valid JSON the first three cannot be inside a string: a quote there has a backslash before it. A string may
# begin like _END; the rest of the answer is then not JSON, and the whole answer is read as JSON instead.
_BEGIN: Final = b'"result":[{"metric":'
_BETWEEN: Final = b'"]},{"metric":'
_BEFORE_TIME: Final = b',"value":['
_END: Final = b'"]}]'
_EMPTY_RESULT: Final = b'"result":['


class VectorText:
    def __init__(self) -> None:
        self.labels = RecentLabels(self._decode)
        self._values: dict[str, str] = {}

    def read(self, body: bytes, max_series: int | None = None) -> Vector | None:
        begin, end = body.find(_BEGIN), body.rfind(_END)
        if not 0 <= begin < end:
            return None  # an empty vector, a scalar, an error
        try:
            # The same answer without its series: status, type, warnings.
            frame = orjson.loads(body[: begin + len(_EMPTY_RESULT)] + body[end + len(_END) - 1 :])
            if frame["status"] != "success":
                return None
            empty = read_vector(frame)
            pieces = body[begin + len(_BEGIN) : end].split(_BETWEEN)
            check_size(len(pieces), max_series, "series")
            return self._to_vector(pieces, empty)
        except (ValueError, KeyError, TypeError, OverflowError):
            return None

    def _to_vector(self, pieces: list[bytes], empty: Vector) -> Vector:
        time_text = pieces[0].rpartition(_BEFORE_TIME)[2].partition(b",")[0]
        # All samples of an instant vector have the same time, so the text before each value is the same.
        before_value = _BEFORE_TIME + time_text + b',"'
        rows = [piece.rpartition(before_value) for piece in pieces]
        values = np.array([float(row[2]) for row in rows], dtype=np.float64)
        dicts = self.labels.find([row[0] for row in rows])
        time_ms = round(float(time_text) * 1000)
        return Vector(time_ms, SharedLabels(dicts), values, empty.warnings, empty.infos)

    def _decode(self, text: bytes) -> LabelDict:
        decoded = orjson.loads(text)
        if not isinstance(decoded, dict) or not all(isinstance(value, str) for value in decoded.values()):
            raise ValueError("not a label set")
        if len(self._values) > 2 * len(self.labels) + 1024:  # processes come and go
            self._values = {}
        share = self._values.setdefault  # a UUID is in twenty series
        return {name: share(value, value) for name, value in decoded.items()}
