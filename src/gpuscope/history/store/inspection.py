"""Statistics, check, backup and export of a store. All of them work while the store runs."""

from __future__ import annotations

import math
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuscope.history.store.contents import Block, Contents
from gpuscope.history.store.folder import FILE_MODE, FOLDER_MODE, folder_bytes
from gpuscope.history.store.head_view import HeadView
from gpuscope.history.store.index import Index
from gpuscope.history.store.options import OwnStats
from gpuscope.history.store.reader import Reader, ReadSnapshot
from gpuscope.history.store.schema import FILE_NAME, connect, schema_version
from gpuscope.history.store.store_errors import StoreError, from_sqlite
from gpuscope.history.store.tick import Float64s
from gpuscope.model.series import STALE_NAN_BITS, Labels, Matcher, MatchOp

_BATCH_SERIES = 64
_MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of a store; the counters start at zero when it is opened."""

    schema: int
    series: int
    counted_series: int
    """What counts towards `max_series`: of series that have ended, an eighth."""
    max_series: int | None
    targets: int
    blocks: int
    merged_blocks: int
    block_samples: int
    head_samples: int
    head_bytes: int
    oldest_ms: int | None
    newest_ms: int | None
    file_bytes: int
    free_bytes: int
    journal_bytes: int
    disk_bytes: int
    """Disk space of the whole folder."""
    cache_bytes: int
    kept_rows_bytes: int
    """Memory of the rows of wide selections kept between queries."""
    commits: int
    ticks: int
    samples: int
    repeated: int
    refused: dict[str, int]
    failed_commits: int
    full_since_ms: int | None
    last_error: str | None
    lost: str | None
    restarts: int
    damaged_chunks: int
    seals: int
    merges: int
    dropped_blocks: int

    @property
    def bytes_per_sample(self) -> float | None:
        """File size without free pages, divided by the number of samples."""
        total = self.block_samples + self.head_samples
        return (self.file_bytes - self.free_bytes) / total if total else None


def stats(
    reader: Reader, index: Index, contents: Contents, own_stats: OwnStats, path: Path, kept_rows_bytes: int
) -> Stats:
    states, blocks = contents.states(), contents.blocks()
    heads = [state.head for state in states] + [late_head.head for state in states for late_head in state.late]
    firsts = [block.first for block in blocks] + [head.first for head in heads if head.first is not None]
    lasts = [block.last for block in blocks] + [head.last for head in heads if head.last is not None]
    pages = free = size = schema = 0
    # The file may have been deleted: the other numbers do not need it.
    with suppress(StoreError), reader.snapshot([], 0, 0) as snapshot:
        pages, free, size = (
            _pragma(snapshot.db, name) for name in ("page_count", "freelist_count", "page_size")
        )
        schema = schema_version(snapshot.db)
    journal = path.with_name(path.name + "-wal")
    return Stats(
        schema=schema,
        series=len(index),
        counted_series=index.counted_series,
        max_series=None if index.limit is None else index.limit.max_series,
        targets=len(states),
        blocks=len(blocks),
        merged_blocks=sum(block.level > 0 for block in blocks),
        block_samples=sum(block.samples for block in blocks),
        head_samples=sum(head.samples for head in heads),
        head_bytes=sum(head.nbytes() for head in heads),
        oldest_ms=min(firsts, default=None),
        newest_ms=max(lasts, default=None),
        file_bytes=pages * size,
        free_bytes=free * size,
        journal_bytes=journal.stat().st_size if journal.exists() else 0,
        disk_bytes=folder_bytes(path.parent),
        cache_bytes=reader.cache.bytes,
        kept_rows_bytes=kept_rows_bytes,
        commits=own_stats.commits,
        ticks=own_stats.ticks,
        samples=own_stats.samples,
        repeated=own_stats.repeated,
        refused=dict(own_stats.refused),
        failed_commits=own_stats.failed_commits,
        full_since_ms=own_stats.full_since_ms,
        last_error=own_stats.last_error,
        lost=own_stats.lost,
        restarts=own_stats.restarts,
        damaged_chunks=own_stats.damaged_chunks,
        seals=own_stats.seals,
        merges=own_stats.merges,
        dropped_blocks=own_stats.dropped_blocks,
    )


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


@dataclass(frozen=True, slots=True)
class Cardinality:
    """Metric names and label pairs with the most series, and label names with the most values."""

    series: int
    by_metric: list[tuple[str, int]]
    by_label: list[tuple[str, int]]
    by_pair: list[tuple[str, int]]


def cardinality(index: Index, limit: int) -> Cardinality:
    metrics: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    for name, value, count in index.counts():
        labels[name] += 1
        pairs[f"{name}={value}"] = count
        if name == "__name__":
            metrics[value] = count
    return Cardinality(
        len(index), metrics.most_common(limit), labels.most_common(limit), pairs.most_common(limit)
    )


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check`; the store is sound if there are no problems."""

    blocks: int
    chunks: int
    samples: int
    """Samples in blocks."""
    head_samples: int
    """Samples that are not sealed yet."""
    problems: list[str]


def check(reader: Reader, index: Index, contents: Contents, own_stats: OwnStats) -> CheckReport:
    """Run SQLite's integrity check, decode every chunk and compare it with its block's row, then read the
    unsealed samples."""
    problems: list[str] = []
    chunks = samples = in_heads = 0
    targets = [state.id for state in contents.states()]
    with reader.snapshot(targets, -(2**62), 2**62) as snapshot:
        problems += _check_pages(snapshot.db)
        known = index.select(())
        blocks = [block for view in snapshot.targets.values() for block in view.blocks]
        for block in blocks:
            count, stored = _check_block(snapshot, block, known, problems)
            chunks, samples = chunks + count, samples + stored
        problems += _check_ticks(snapshot.db)
        for target, view in snapshot.targets.items():
            for head in (view.head, *view.late):
                in_heads += _check_head(head, target, known, problems)
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"and {len(problems) - _MAX_PROBLEMS} more"]
    return CheckReport(len(blocks), chunks, samples, in_heads, problems)


def _check_ticks(db: sqlite3.Connection) -> list[str]:
    """Find ticks whose layout is missing; they were skipped when the store was opened."""
    query = "SELECT count(*) FROM tick WHERE layout IS NOT NULL AND layout NOT IN (SELECT id FROM layout)"
    try:
        lost = int(db.execute(query).fetchone()[0])
    except sqlite3.DatabaseError as error:
        return [f"the ticks: {error}"]
    return [f"{lost} ticks cannot be read: their series are unknown"] if lost else []


def _check_head(
    head: HeadView, target: int, known: np.ndarray[tuple[int], np.dtype[np.int64]], problems: list[str]
) -> int:
    unknown = head.sorted_series[~np.isin(head.sorted_series, known)]
    problems += [f"target {target}: series {sid} is not in the index" for sid in unknown.tolist()]
    samples = 0
    for at in range(0, len(head.sorted_series), _BATCH_SERIES):
        for sid, (times, _) in head.read(head.sorted_series[at : at + _BATCH_SERIES], -(2**62), 2**62).items():
            samples += len(times)
            if (np.diff(times) <= 0).any():
                problems.append(f"target {target}: series {sid} has times out of order")
    return samples


def _check_pages(db: sqlite3.Connection) -> list[str]:
    try:
        rows = [row[0] for row in db.execute("PRAGMA integrity_check(20)")]
    except sqlite3.DatabaseError as error:
        return [f"the file: {error}"]
    return [] if rows == ["ok"] else [f"the file: {row}" for row in rows]


def _check_block(
    snapshot: ReadSnapshot, block: Block, known: np.ndarray[tuple[int], np.dtype[np.int64]], problems: list[str]
) -> tuple[int, int]:
    members = snapshot.blocks.members(block)
    unknown = members[~np.isin(members, known)]
    problems += [f"block {block.id}: series {sid} is not in the index" for sid in unknown.tolist()]
    chunks = samples = 0
    for at in range(0, len(members), _BATCH_SERIES):
        part = members[at : at + _BATCH_SERIES]
        by_series = snapshot.blocks.read(block, part)
        chunks += len(by_series)
        for sid in part.tolist():
            if sid not in by_series:
                problems.append(f"block {block.id}: series {sid} cannot be read")
                continue
            times = by_series[sid][0]
            samples += len(times)
            if times[0] < block.first or times[-1] > block.last or (np.diff(times) <= 0).any():
                problems.append(f"block {block.id}: series {sid} has times out of order or outside the block")
    if samples != block.samples:
        problems.append(f"block {block.id}: {samples} samples, expected {block.samples}")
    return chunks, samples


def backup(path: Path, folder: Path) -> Path:
    """Copy the store into the folder, which is created if it does not exist."""
    copy = folder / FILE_NAME
    if copy.exists():
        raise StoreError(f"{copy} exists already: choose an empty folder for the backup")
    if not folder.exists():
        folder.mkdir(parents=True, mode=FOLDER_MODE)
    copy_database(path, copy)
    return copy


def copy_database(path: Path, copy: Path) -> None:
    """With SQLite's backup API, in one step: with several steps each tick would restart it."""
    part = copy.with_suffix(".part")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    try:
        source = connect(path, read_only=True)
        try:
            target = sqlite3.connect(part)
            try:
                source.backup(target)
            finally:
                target.close()
        finally:
            source.close()
    except sqlite3.Error as error:
        part.unlink(missing_ok=True)
        raise from_sqlite(error) from error
    part.rename(copy)


# Exports the store as OpenMetrics text, one metric family after the other, one series at a time.
#
# The store does not know types, so families are `unknown`. Stale markers, which OpenMetrics cannot represent,
# and series without a name are left out. Times are in seconds with three decimals.

_MIN_TIME_MS, _MAX_TIME_MS = -(2**62), 2**62
_EXPORTED_SERIES = 16
_PLAIN_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*").fullmatch
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def export_openmetrics(
    index: Index, reader: Reader, matchers: Sequence[Matcher], start_ms: int | None, end_ms: int | None
) -> Iterator[str]:
    """Yield parts of one exposition, ending with `# EOF`."""
    start = _MIN_TIME_MS if start_ms is None else start_ms
    end = _MAX_TIME_MS if end_ms is None else end_ms
    for name in sorted(index.label_columns(index.select(matchers)).values("__name__") - {""}):
        same_name = Matcher("__name__", MatchOp.EQUAL, name)
        sids = index.select((*matchers, same_name))
        first = True
        for at in range(0, len(sids), _EXPORTED_SERIES):
            groups = index.by_target(sids[at : at + _EXPORTED_SERIES])
            for sid, (times, values) in reader.read(groups, start, end).items():
                text = _series_text(name, index.labels(sid), times.tolist(), values)
                if text:
                    yield f"# TYPE {_name(name)} unknown\n{text}" if first else text
                    first = False
    yield "# EOF\n"


def _series_text(name: str, labels: Labels, times: list[int], values: Float64s) -> str:
    pairs = [f"{_name(key)}={_quoted(value)}" for key, value in labels if key != "__name__"]
    if _PLAIN_NAME(name):
        prefix = f"{name}{{{','.join(pairs)}}} " if pairs else f"{name} "
    else:
        prefix = f"{{{','.join([_quoted(name), *pairs])}}} "
    stale = (values.view(np.int64) == STALE_NAN_BITS).tolist()
    return "".join(
        f"{prefix}{format_value(value)} {time // 1000}.{time % 1000:03d}\n"
        for time, value, gone in zip(times, values.tolist(), stale, strict=True)
        if not gone
    )


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _name(text: str) -> str:
    """Return a metric or label name, quoted if it has characters that Prometheus 2 did not allow."""
    return text if _PLAIN_NAME(text) else _quoted(text)


def format_value(value: float) -> str:
    """Format a float as in OpenMetrics."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
