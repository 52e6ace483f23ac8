"""Which findings take a node out of service, and the reason that an administrator reads in `sinfo -R`.

Only critical findings drain. Most are states and end when the problem ends; an error is an event that is
forgotten after an hour, so a node that was drained for one returns only after a reboot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuscope.judge.checks.check import Severity
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.gpu_checks import ERROR_KINDS

PREFIX: Final = "gpuscope"
MAX_REASON: Final = 200
UNTIL_REBOOT: Final = ERROR_KINDS


def draining(findings: Iterable[Mapping[str, Any]], node: str) -> list[Mapping[str, Any]]:
    """The critical findings of one node, from the JSON of `/api/live`."""
    return [
        finding
        for finding in findings
        if finding.get("node") == node and finding.get("severity") == Severity.CRITICAL
    ]


def drain_reason(findings: Iterable[Mapping[str, Any]]) -> str:
    """`gpuscope gpu_lost,xid_hardware: GPU 3 does not answer after XID 79 (1 more)`; empty without findings."""
    found = list(findings)
    if not found:
        return ""
    kinds = ",".join(dict.fromkeys(str(one.get("kind", "")) for one in found))
    more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
    text = f"{PREFIX} {kinds}: {found[0].get('why', '')}{more}"
    # scontrol's own syntax has quotes and brackets with a meaning.
    plain = "".join(c if c.isascii() and c.isprintable() and c not in "\"'[]\\" else "?" for c in text)
    return plain[:MAX_REASON]


def kinds_in(reason: str) -> frozenset[str]:
    """The kinds of a reason that was made here; empty for any other."""
    prefix, _, rest = reason.partition(" ")
    return frozenset(rest.partition(":")[0].split(",")) & CHECKS.keys() if prefix == PREFIX else frozenset()


def waits_for_reboot(reason: str, drained_at: float | None, booted_at: float) -> bool:
    return bool(kinds_in(reason) & UNTIL_REBOOT) and (drained_at is None or booted_at <= drained_at)
