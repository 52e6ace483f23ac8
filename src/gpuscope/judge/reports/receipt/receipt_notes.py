"""Up to five notes of a receipt, the most expensive first, each with the one command that helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuscope.judge.checks.thresholds import WAITING_RATIO, WORKING_RATIO
from gpuscope.judge.reports.receipt.job_receipt import HOUR, MIN_SECONDS_FOR_NOTES, JobReceipt, ReceiptNote
from gpuscope.judge.reports.report_sentence import ReportSentence

MAX_NOTES: Final = 5
LOW_EFFICIENCY: Final = 0.25
EXPLAINED_EFFICIENCY: Final = WAITING_RATIO
"""Below it a cause that the history shows is named, as a finding does."""
LOW_MEMORY: Final = 0.25
LONG_IDLE_SECONDS: Final = 1800.0
UNEVEN: Final = 0.5
THROTTLED_SHARE: Final = 0.05
SHORT_OF_LIMIT: Final = 0.25
MIN_WAIT_SHARE: Final = 0.25
"""A cause that the history shows for less of the time is not named."""
WAIT_COMMANDS: Final = {
    "waits_for_disk": "cp -r DATA $TMPDIR  # reads from a local disk",
    "waits_for_network": "cp -r DATA $TMPDIR  # reads from a local disk",
    "waits_for_data": "DataLoader(…, num_workers=8)  # spreads its work",
}
"""By kind of finding that the history shows."""
EXPECTED_UNDER_LOAD: Final = frozenset({"sw_power_cap", "applications_clocks_setting", "sync_boost"})


def find_notes(receipt: JobReceipt) -> list[ReceiptNote]:
    if receipt.seen_seconds < MIN_SECONDS_FOR_NOTES:
        return []
    return list(_notes(receipt))[:MAX_NOTES]


def _notes(receipt: JobReceipt) -> Iterator[ReceiptNote]:
    for code, count in sorted(receipt.xids.items(), key=lambda one: -one[1]):
        once = ReportSentence("receipt.xid_once", xid=code)
        sentence = once if count == 1 else ReportSentence("receipt.xid", xid=code, count=count)
        yield ReceiptNote(sentence, f"gpuscope explain xid {code}")
    yield from _unused(receipt)
    yield from _low_use(receipt)
    waited = receipt.wait_shares.get("waits_for_rank", 0.0)
    if waited >= MIN_WAIT_SHARE:
        sentence = ReportSentence("receipt.waits_for_rank", percent=round(100 * waited))
        yield ReceiptNote(sentence, "py-spy dump --pid PID  # of the slower rank")
    for reason, seconds in sorted(receipt.throttled_seconds.items(), key=lambda one: -one[1]):
        share = seconds / receipt.seen_seconds
        if share > THROTTLED_SHARE and reason not in EXPECTED_UNDER_LOAD:
            sentence = ReportSentence("receipt.throttled", reason=reason, percent=round(100 * share))
            yield ReceiptNote(sentence, f"gpuscope explain throttle {reason}")
    yield from _too_much(receipt)


def _unused(receipt: JobReceipt) -> Iterator[ReceiptNote]:
    total, unused = len(receipt.gpus), receipt.unused_gpus
    if not unused:
        return
    if unused == total:
        yield ReceiptNote(ReportSentence("receipt.all_unused"), _ask_for(receipt, 0))
    else:
        sentence = ReportSentence("receipt.unused", count=unused, gpus=total)
        yield ReceiptNote(sentence, _ask_for(receipt, total - unused))


def _ask_for(receipt: JobReceipt, count: int) -> str:
    if receipt.kind == "pod":
        return f"kubectl -n {receipt.namespace} edit pod {receipt.name}  # nvidia.com/gpu: {count}"
    return f"sbatch --gpus={count} …" if count else "sbatch --gpus=0 …  # or a partition without GPUs"


def _low_use(receipt: JobReceipt) -> Iterator[ReceiptNote]:
    efficiency, spread = receipt.efficiency, receipt.spread
    some_work = receipt.unused_gpus < len(receipt.gpus)
    if some_work and spread is not None and spread[0] >= WORKING_RATIO and spread[1] - spread[0] > UNEVEN:
        low, high = (round(100 * share) for share in spread)
        yield ReceiptNote(
            ReportSentence("receipt.uneven", low=low, high=high), "torchrun --nproc-per-node=gpu …"
        )
    if some_work and efficiency is not None and not receipt.unused_gpus:
        yield from _low_efficiency(receipt, efficiency)
    # A GPU that was never used is another note's.
    idle = max((gpu.idle_episode_seconds for gpu in receipt.gpus if not gpu.is_unused), default=0.0)
    if idle >= LONG_IDLE_SECONDS:
        sentence = ReportSentence(f"receipt.idle_{receipt.kind}", hours=idle / HOUR)
        yield ReceiptNote(sentence, _end_command(receipt))


def _low_efficiency(receipt: JobReceipt, efficiency: float) -> Iterator[ReceiptNote]:
    """Names a cause only if the history shows it."""
    busy = round(100 * efficiency)
    for kind, command in WAIT_COMMANDS.items():
        share = receipt.wait_shares.get(kind, 0.0)
        if share >= MIN_WAIT_SHARE and efficiency < EXPLAINED_EFFICIENCY:
            sentence = ReportSentence(f"receipt.low.{kind}", busy=busy, percent=round(100 * share))
            yield ReceiptNote(sentence, command)
            return
    if efficiency < LOW_EFFICIENCY:
        sentence = ReportSentence("receipt.low", busy=busy)
        yield ReceiptNote(sentence, "py-spy dump --pid PID  # shows what it waits for, while it runs")


def _end_command(receipt: JobReceipt) -> str:
    if receipt.kind == "pod":
        where = f"kubectl -n {receipt.namespace}"
        if receipt.is_running:
            return f"{where} delete pod {receipt.name}"
        return f"{where} create job …  # a pod of a Job ends with its program"
    if receipt.is_running:
        return f"scancel {receipt.name}"
    return "scancel $SLURM_JOB_ID  # as the last line of the script"


def _too_much(receipt: JobReceipt) -> Iterator[ReceiptNote]:
    memory = receipt.peak_memory_ratio
    # A GPU that is busy is not too large, however little memory the job needs.
    is_busy = receipt.efficiency is None or receipt.efficiency >= EXPLAINED_EFFICIENCY
    if memory is not None and memory < LOW_MEMORY and not is_busy and receipt.unused_gpus < len(receipt.gpus):
        yield ReceiptNote(
            ReportSentence("receipt.low_memory", percent=round(100 * memory)),
            "sinfo -o '%P %G'" if receipt.kind == "job" else "kubectl describe nodes | grep nvidia.com/",
        )
    limit = receipt.limit_seconds
    if not receipt.is_running and limit and receipt.run_seconds < SHORT_OF_LIMIT * limit:
        hours = max(1, round(1.5 * receipt.run_seconds / HOUR))
        sentence = ReportSentence("receipt.short", percent=round(100 * receipt.run_seconds / limit))
        yield ReceiptNote(sentence, f"sbatch --time={hours}:00:00 …")
