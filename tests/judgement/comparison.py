"""Compares the verdict of a server with the one that a situation expects; every difference is a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from gpuscope.history.scrape.target import TargetHealth
from tests.judgement.agents import board_uuid
from tests.judgement.situation import Expected, ExpectedAlert, ExpectedFinding, Place, Situation
from tests.judgement.verdicts import FoundAlerts, FoundFinding, Server, digests

SLACK_SECONDS = 75.0
"""A scrape interval of a minute, and the time that a reading is old."""
SLACK_SHARE, SLACK_HOURS = 0.01, SLACK_SECONDS / 3600


def slack_seconds(situation: Situation) -> float:
    return SLACK_SECONDS + max(0.0, situation.interval - 60.0)


def down_targets(situation: Situation) -> list[TargetHealth]:
    """Those that do not answer at the end."""
    last = situation.moments[-1]
    down = [
        {"job": "gpuscope", "instance": node.instance}
        for node in situation.nodes.values()
        if situation.is_during("node_down", node.name, last)
    ]
    return [TargetHealth(labels=labels, url=f"http://{labels['instance']}", error="refused") for labels in down]


def uuids_of(situation: Situation, places: Iterable[Place]) -> frozenset[str]:
    """As at the end of the situation."""
    found = set()
    for place in places:
        swaps = len(list(situation.of_kind("swapped", Place(place.node, place.gpu))))
        layouts = len(list(situation.of_kind("mig", Place(place.node, place.gpu))))
        if place.instance is None:
            found.add(str(board_uuid(place, swaps)))
        else:
            found.add(f"MIG-{place.node}-{place.gpu}-{layouts}-{place.instance}")
    return frozenset(found)


def judge(situation: Situation, server: Server, folder: Path) -> list[str]:
    """Everything that is judged wrong, in words."""
    expected = situation.expected
    has_texts = any(one.says or one.never_says for one in (*expected.alerts, *expected.fired))

    def is_running(at: float) -> bool:
        return not situation.is_during("server_down", True, at - situation.start)

    now = server.findings_now(down_targets(situation))
    past = server.findings_over_time()
    alerts = server.alerts(is_running, with_texts=has_texts)
    return [
        *compare_findings("now", situation, expected.now, now),
        *compare_findings("over time", situation, expected.past, past),
        *compare_with_time(situation, past),
        *compare_alerts(expected, alerts),
        *compare_hours(situation, server),
        *compare_receipts(situation, server),
        *compare_policy(situation, server.policy(folder, is_running)),
        *compare_digests(expected.digests),
    ]


def compare_findings(
    when: str, situation: Situation, expected: Sequence[ExpectedFinding], found: Sequence[FoundFinding]
) -> Iterator[str]:
    left = list(found)
    for one in expected:
        kind = "|".join(one.kinds)
        candidates = [other for other in left if other.kind in one.kinds]
        wrong = [list(differences(situation, one, other)) for other in candidates]
        if not candidates:
            yield f"{when}: {kind} is not found"
            continue
        best = min(range(len(candidates)), key=lambda number: len(wrong[number]))
        yield from (f"{when}: {kind}: {text}" for text in wrong[best])
        left.remove(candidates[best])
    for other in left:
        if other.kind in situation.expected.may:
            continue
        yield f"{when}: accused without reason: {other.kind} {sorted(other.uuids)}: {other.text}"


def compare_with_time(situation: Situation, found: Sequence[FoundFinding]) -> Iterator[str]:
    """What findings cost together is never more than the time that there was."""
    cluster = [
        row if isinstance(row, int) else row["gpus"]
        for one in situation.clusters
        for row in one.get("nodes", {}).values()
    ]
    gpus = max(sum(node.gpus for node in situation.nodes.values()), sum(cluster))
    hours, cost = gpus * situation.lasts / 3600, sum(one.gpu_hours or 0.0 for one in found)
    if cost > hours + SLACK_HOURS:
        yield f"over time: {cost} GPU-hours are claimed of {hours}"


def differences(situation: Situation, expected: ExpectedFinding, found: FoundFinding) -> Iterator[str]:
    if expected.gpus is not None and uuids_of(situation, expected.gpus) != found.uuids:
        yield f"GPUs {sorted(found.uuids)}, not {[place.text for place in expected.gpus]}"
    if expected.owner is not None and expected.owner not in (found.owners or {"nobody"}):
        yield f"owner {sorted(found.owners)}, not {expected.owner}"
    if expected.since is not None:
        since = None if found.since is None else found.since - situation.start
        if since is None or abs(since - expected.since) > slack_seconds(situation):
            yield f"since {since} s, not {expected.since} s"
    slack = slack_seconds(situation) / 3600 * max(1, len(found.uuids))  # a scrape interval of each GPU
    if expected.hours is not None and not is_close(found.gpu_hours, expected.hours, slack):
        yield f"{found.gpu_hours} GPU-hours, not {expected.hours}"
    yield from text_differences(expected, found.text)


def text_differences(expected: ExpectedFinding | ExpectedAlert, text: str) -> Iterator[str]:
    yield from (f"{text!r} does not say {one!r}" for one in expected.says if one not in text)
    yield from (f"{text!r} says {one!r}" for one in expected.never_says if one in text)


def is_close(found: float | None, expected: float, slack: float = SLACK_HOURS) -> bool:
    return found is not None and abs(found - expected) <= max(SLACK_SHARE * abs(expected), slack)


def compare_alerts(expected: Expected, found: FoundAlerts) -> Iterator[str]:
    left = list(found.firing)
    for one in expected.alerts:
        name = "|".join(one.names)
        candidates = [other for other in left if other.name in one.names]
        if not candidates:
            yield f"alert {name} does not fire"
            continue
        wrong = [list(text_differences(one, other.text)) for other in candidates]
        best = min(range(len(candidates)), key=lambda number: len(wrong[number]))
        yield from (f"alert {name}: {text}" for text in wrong[best])
        left.remove(candidates[best])
    for other in left:
        if other.name not in expected.may:
            yield f"alert {other.name} fires without reason"
    for one in expected.fired:
        if found.fired.isdisjoint(one.names):
            yield f"alert {'|'.join(one.names)} never fired"
    known = {name for one in (*expected.alerts, *expected.fired) for name in one.names}
    known |= expected.may | {other.name for other in found.firing}
    yield from (f"alert {name} fired without reason" for name in sorted(found.fired - known))


def compare_hours(situation: Situation, server: Server) -> Iterator[str]:
    reports: dict[str, dict[str, dict[str, float]]] = {}
    for name, expected in situation.expected.hours.items():
        kind, _, rest = name.partition(" ")
        by = kind if rest else "pod" if "/" in name else "user"
        rows = reports[by] = reports.get(by) or server.hours(by)
        row = rows.get(rest or name)
        if row is None:
            yield f"hours: no row of {name}, only {sorted(rows)}"
            continue
        for what, hours in expected.items():
            if not is_close(row[what], hours):
                yield f"hours: {name} {what} {row[what]}, not {hours}"


def compare_receipts(situation: Situation, server: Server) -> Iterator[str]:
    for job, expected in situation.expected.receipts.items():
        found = server.receipt(job)
        for what, value in expected.items():
            if not is_same(found[what], value):
                yield f"receipt of {job}: {what} {found[what]}, not {value}"


def is_same(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):  # of notes: `low` or the end of `low.waits_for_data`
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(f".{one}".endswith(f".{other}") for one, other in pairs)
    if isinstance(expected, float) or isinstance(found, float):
        return found is not None and expected is not None and is_close(float(found), float(expected))
    return bool(found == expected)


def compare_policy(situation: Situation, found: dict[str, str]) -> Iterator[str]:
    expected = dict(situation.expected.policy)
    for holder in sorted(expected.keys() | found.keys()):
        done, wanted = found.get(holder, "left alone"), expected.get(holder, "left alone")
        if done != wanted:
            yield f"policy: {holder} {done}, not {wanted}"


def compare_digests(expected: Mapping[str, Any]) -> Iterator[str]:
    if not expected:
        return
    zone = ZoneInfo(expected["zone"])

    def midnight(day: date) -> datetime:
        return datetime(day.year, day.month, day.day, tzinfo=zone)

    mailed = digests(expected["every"], zone.key, midnight(expected["from"]), midnight(expected["to"]))
    found = [tuple(one.astimezone(UTC) for one in ends) for ends in mailed]
    wanted = [tuple(midnight(day).astimezone(UTC) for day in ends) for ends in expected["mailed"]]
    if found != wanted:
        yield f"digests: {[[str(one) for one in ends] for ends in mailed]}, not {expected['mailed']}"
