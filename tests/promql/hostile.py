"""Two hours of difficult data: resets, gaps, staleness, NaN, infinities, jitter, late starts.

The same seed always gives the same series. Values are irregular on purpose: for equal values the choice of
`topk` is undefined.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tests.promql.memory import STALE, MemoryStorage

START_MS = 1_700_000_000_000
SPAN_MS = 2 * 3_600_000

Samples = list[tuple[int, float]]


def hostile_storage(seed: int = 1) -> MemoryStorage:
    rng = random.Random(seed)
    storage = MemoryStorage()
    for labels, samples in _series(rng):
        storage.add(labels, samples)
    return storage


def _series(rng: random.Random) -> Iterator[tuple[dict[str, str], Samples]]:
    for node in "abc":
        axis = _axis(rng, 15_000, jitter=0)
        for gpu in "0123":
            labels = {"node": node, "gpu": gpu}
            yield {"__name__": "watts", **labels}, _walk(rng, axis)
            yield {"__name__": "busy_seconds_total", **labels}, _counter(rng, axis, rng.uniform(0.2, 1))
    yield from _troubled(rng)
    yield from _histograms(rng)
    yield from _odd(rng)


def _axis(rng: random.Random, interval_ms: int, jitter: int) -> list[int]:
    offset = rng.randrange(interval_ms)
    times = range(START_MS + offset, START_MS + SPAN_MS, interval_ms)
    return sorted({t + rng.randint(-jitter, jitter) for t in times})


def _walk(rng: random.Random, axis: list[int]) -> Samples:
    value = rng.uniform(50, 700)
    samples = []
    for t in axis:
        value += rng.gauss(0, 10)
        samples.append((t, value))
    return samples


def _counter(rng: random.Random, axis: list[int], speed: float, reset: float = 0.01) -> Samples:
    value = rng.uniform(0, 1000)
    samples = []
    for t in axis:
        value = rng.uniform(0, 3) if rng.random() < reset else value + rng.expovariate(1 / speed)
        samples.append((t, value))
    return samples


def _troubled(rng: random.Random) -> Iterator[tuple[dict[str, str], Samples]]:
    """Each series has one kind of irregularity, named in the label `trouble`."""
    troubles: dict[str, Callable[[Samples], Samples]] = {
        "gaps": lambda s: [x for i, x in enumerate(s) if (i // 23) % 3 != 1],
        "late": lambda s: s[len(s) // 2 :],
        "early": lambda s: s[: len(s) // 3],
        "stale": lambda s: [(t, STALE if i % 17 == 0 else v) for i, (t, v) in enumerate(s)],
        "stops": lambda s: [*s[: len(s) // 2], (s[len(s) // 2][0], STALE)],
        "nan": lambda s: [(t, float("nan") if i % 7 == 0 else v) for i, (t, v) in enumerate(s)],
        "infinite": lambda s: [(t, float("inf") if i % 31 == 0 else v) for i, (t, v) in enumerate(s)],
        "both": lambda s: [
            (t, float("-inf" if i % 2 else "inf") if i % 41 < 2 else v) for i, (t, v) in enumerate(s)
        ],
        "flat": lambda s: [(t, 42.5) for t, _ in s],
        "zero": lambda s: [(t, 0.0) for t, _ in s],
        "negative": lambda s: [(t, -v) for t, v in s],
        "thin": lambda s: s[::19],
    }
    for number, (kind, trouble) in enumerate(troubles.items()):
        axis = _axis(rng, rng.choice([5_000, 15_000, 30_000, 60_000]), rng.choice([0, 0, 3, 900]))
        labels = {"trouble": kind, "node": "abc"[number % 3], "number": str(number)}
        yield {"__name__": "gauge", **labels}, trouble(_walk(rng, axis))
        yield {"__name__": "events_total", **labels}, trouble(_counter(rng, axis, 2.0, reset=0.03))


def _histograms(rng: random.Random) -> Iterator[tuple[dict[str, str], Samples]]:
    bounds = ["0.1", "0.25", "0.5", "1", "2.5", "10", "+Inf"]
    for node in "ab":
        axis = _axis(rng, 15_000, jitter=0)
        counts = [0.0] * len(bounds)
        rows: dict[str, Samples] = {bound: [] for bound in bounds}
        for t in axis:
            for _ in range(rng.randrange(6)):
                for i in range(rng.randrange(len(bounds)), len(bounds)):
                    counts[i] += 1
            if rng.random() < 0.01:
                counts = [0.0] * len(bounds)
            for bound, count in zip(bounds, counts, strict=True):
                if rng.random() > 0.02 or bound == "+Inf":
                    rows[bound].append((t, count + (rng.random() < 0.01)))
        for bound, samples in rows.items():
            yield {"__name__": "wait_seconds_bucket", "node": node, "le": bound}, samples
        yield {"__name__": "wait_seconds_count", "node": node}, rows["+Inf"]
    yield {"__name__": "wait_seconds_bucket", "node": "a", "le": "broken"}, rows["1"]
    yield {"__name__": "depth_bucket", "le": "-1"}, rows["0.1"]
    yield {"__name__": "depth_bucket", "le": "0"}, rows["0.5"]
    yield {"__name__": "depth_bucket", "le": "+Inf"}, rows["+Inf"]
    yield {"__name__": "endless_bucket", "le": "1"}, rows["0.1"]


def _odd(rng: random.Random) -> Iterator[tuple[dict[str, str], Samples]]:
    axis = _axis(rng, 15_000, jitter=0)
    for node in "abc":
        for gpu in "0123":
            labels = {
                "node": node,
                "gpu": gpu,
                "model": "H100" if node != "c" else 'A "100"\n',
                "path": f"x/{gpu}/é",
            }
            yield {"__name__": "gpu_info", **labels}, [(t, 1.0) for t in axis]
    yield {"__name__": "steps", "node": "a"}, [(t, float(i // 40)) for i, t in enumerate(axis)]
    yield {"__name__": "steps", "node": "b"}, [(t, float(i // 60)) for i, t in enumerate(axis)]
    yield {"__name__": "moment"}, [(t, t / 1000 + i * 86_400.5) for i, t in enumerate(axis)]
    yield {"__name__": "huge"}, [(t, rng.choice([1e308, -1e308, 1e100, 1.0])) for t in axis]
    yield {"__name__": "cancels"}, [(t, [1.0, 1e100, 1.0, -1e100][i % 4]) for i, t in enumerate(axis)]
    yield {"__name__": "tiny"}, [(t, rng.uniform(-1, 1)) for t in axis]
    yield {"__name__": "angle"}, [(t, rng.uniform(-7, 7)) for t in axis]
    yield {"__name__": "only"}, _walk(rng, axis)
