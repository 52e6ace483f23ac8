"""One situation: what happened on some GPUs, and the right verdict. Read from a file of `situations/`.

`README.md` there explains the keys. Unknown keys are refused: an expectation with a typing error would expect
nothing. What a file does not mention is expected not to be found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.fast_yaml import read_yaml
from tests.judgement.schedules import Schedule, parse_duration, parse_schedule, parse_time

FOLDER = Path(__file__).parent / "situations"
START = 1_790_035_200.0
"""A full hour."""
DEFAULT_LENGTH, DEFAULT_INTERVAL = "2h", "60s"

_PLACE = re.compile(r"(?P<node>[\w-]+)/(?P<first>\d+)(?:-(?P<last>\d+))?(?:\.(?P<instance>\d+))?")


class SituationError(ValueError):
    """The file says something that is not part of its language."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A GPU by node and index, or a MIG instance of it."""

    node: str
    gpu: int
    instance: int | None = None

    @property
    def text(self) -> str:
        return f"{self.node}/{self.gpu}" + ("" if self.instance is None else f".{self.instance}")


def parse_places(text: str | Sequence[str]) -> tuple[Place, ...]:
    """`n1/0`, `n1/0-3`, `n1/0.1` (MIG instance 1 of GPU 0), or a list of these."""
    if not isinstance(text, str):
        return tuple(place for one in text for place in parse_places(one))
    found = _PLACE.fullmatch(text)
    if found is None:
        raise SituationError(f"{text!r} is not a GPU such as n1/0 or n1/0-3")
    instance = None if found["instance"] is None else int(found["instance"])
    first, last = int(found["first"]), int(found["last"] or found["first"])
    return tuple(Place(found["node"], gpu, instance) for gpu in range(first, last + 1))


@dataclass(frozen=True, slots=True)
class Span:
    """From a second of the situation to another one; `begin` belongs to it."""

    begin: float
    end: float

    def has(self, at: float) -> bool:
        return self.begin <= at < self.end


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    gpus: int
    model: str = "NVIDIA H100 80GB HBM3"
    clock: Schedule | None = None
    """How many seconds the node's clock is ahead of the server's; None: it is right."""
    host: Mapping[str, Any] = field(default_factory=dict)

    @property
    def instance(self) -> str:
        return f"{self.name}:9400"


@dataclass(frozen=True, slots=True)
class Program:
    """One process on one or several GPUs, or one process on each."""

    pid: int
    places: tuple[Place, ...]
    span: Span
    """While the driver lists it."""
    started: float
    """In seconds of the situation; below 0 if it ran before."""
    facts: Mapping[str, Schedule | None]
    """By name: `sm`, `encoder`, `memory`; None where the driver does not know it."""
    user: str = ""
    command: str = "python3"
    kind: str = "C"
    job: str = ""
    step: str = ""
    pod: str = ""
    """NAMESPACE/NAME."""
    pod_uid: str = ""
    container: str = ""
    launcher: str = ""
    """Processes with the same launcher belong together; empty: it was started on its own."""
    in_proc: bool = True
    """False: the agent does not see it in /proc."""


@dataclass(frozen=True, slots=True)
class Grant:
    """GPUs that a scheduler gave to a job or a pod."""

    places: tuple[Place, ...]
    span: Span
    job: str = ""
    user: str = ""
    account: str = "lab"
    partition: str = "gpu"
    submitted: float = 0.0
    pod: str = ""
    container: str = "main"
    is_known_on_node: bool = True
    """By a prolog or the kubelet; else only the agent that reads Slurm knows it."""
    state: str = "RUNNING"


@dataclass(frozen=True, slots=True)
class Rail:
    """The adapter next to a GPU."""

    place: Place
    facts: Mapping[str, Schedule]
    """`up`, `rate` (Gbit/s), `lanes`, and the counters `downs` and `errors`."""


@dataclass(frozen=True, slots=True)
class NcclJob:
    """A job over GPUs in the order of its ranks; from a time on the others wait for one of them."""

    places: tuple[Place, ...]
    span: Span
    """While they wait."""
    rank: int = 0
    reason: str = "behind"


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    what: Any
    span: Span
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpectedFinding:
    kinds: tuple[str, ...]
    """Any of them is right: `held_idle|only_some_work`."""
    gpus: tuple[Place, ...] | None = None
    owner: str | None = None
    since: float | None = None
    hours: float | None = None
    says: tuple[str, ...] = ()
    never_says: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectedAlert:
    names: tuple[str, ...]
    """Any of them is right."""
    says: tuple[str, ...] = ()
    never_says: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    now: tuple[ExpectedFinding, ...] = ()
    past: tuple[ExpectedFinding, ...] = ()
    alerts: tuple[ExpectedAlert, ...] = ()
    """Firing at the end."""
    fired: tuple[ExpectedAlert, ...] = ()
    """Fired at some time and no more."""
    hours: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    receipts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    policy: Mapping[str, str] = field(default_factory=dict)
    """By holder: `warned` or `command`; every other holder is left alone."""
    digests: Mapping[str, Any] = field(default_factory=dict)
    """`every`, `zone`, and the ranges that are `mailed` `from` one day `to` another, both local."""
    may: frozenset[str] = frozenset()
    """Kinds of findings and names of alerts that may be there and need not."""

    @property
    def is_silent(self) -> bool:
        return not (self.now or self.past or self.alerts or self.fired or self.policy)


@dataclass(frozen=True)
class Situation:
    name: str
    why: str
    lasts: float
    interval: float
    start: float
    nodes: Mapping[str, Node]
    programs: tuple[Program, ...]
    grants: tuple[Grant, ...]
    gpu_facts: Mapping[Place, Mapping[str, Schedule]]
    events: tuple[Event, ...]
    others: tuple[Mapping[str, Any], ...]
    clusters: tuple[Mapping[str, Any], ...]
    """Of Slurm."""
    expected: Expected
    rails: tuple[Rail, ...] = ()
    nccl_jobs: tuple[NcclJob, ...] = ()

    @property
    def end(self) -> float:
        return self.start + self.lasts

    def of_kind(self, kind: str, what: object = None) -> Iterator[Event]:
        return (one for one in self.events if one.kind == kind and what in (None, one.what))

    def is_during(self, kind: str, what: object, at: float) -> bool:
        return any(one.span.has(at) for one in self.of_kind(kind, what))

    @cached_property
    def moments(self) -> list[float]:
        """When nodes are scraped, in seconds of the situation; the last is its end."""
        count = int(self.lasts // self.interval)
        offset = self.lasts - count * self.interval
        return [offset + self.interval * number for number in range(count + 1)]


EVENTS = {
    "xid", "agent_restarts", "node_down", "agent_stuck", "server_down", "late", "swapped", "mig",
    "source_down", "processes_unknown", "lost", "scrape_gap", "scraped_twice",
}  # fmt: skip
_TOP = {
    "lasts", "every", "starts", "nodes", "processes", "gpus", "jobs", "pods", "events", "others", "slurm",
    "rails", "nccl", "expect",
}  # fmt: skip
_PROCESS = {
    "gpu", "user", "command", "type", "job", "step", "pod", "pod_uid", "container", "launcher", "in_proc",
    "from", "to", "started", "one_process", "pid",
}  # fmt: skip
PROCESS_FACTS = {
    "sm", "encoder", "decoder", "memory", "io_wait", "network_wait", "busiest_thread", "cpu", "children_cpu",
    "reads",
}  # fmt: skip
_GRANT = {
    "job", "pod", "user", "account", "partition", "gpus", "from", "to", "submitted", "container", "prolog",
    "state",
}  # fmt: skip
_RAIL = {"gpu", "up", "rate", "lanes", "downs", "errors"}
_NCCL = {"gpus", "rank", "reason", "from", "to"}
_EXPECT = {"now", "past", "alerts", "fired", "hours", "receipt", "policy", "digests", "may"}
_FINDING = {"gpus", "owner", "since", "hours", "says", "never_says"}


def _clusters(rows: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    return (rows,) if isinstance(rows, Mapping) else tuple(rows)


def load_situation(path: Path) -> Situation:
    return parse_situation(path.stem, path.read_text("utf-8"))


def parse_situation(name: str, text: str) -> Situation:
    try:
        return _Reader(name, text).read()
    except (KeyError, TypeError, ValueError) as error:
        raise SituationError(f"{name}: {error!r}") from error


class _Reader:
    def __init__(self, name: str, text: str) -> None:
        self._name = name
        comment, _, _ = text.partition("\n")
        if not re.match(r"# \S.*[.?]$", comment):
            raise SituationError("the first line must say in one sentence what happened and why it is right")
        self._why = comment.removeprefix("# ")
        self._document: dict[str, Any] = read_yaml(text)
        _refuse_unknown(self._document, _TOP, "situation")
        self._lasts = parse_duration(self._document.get("lasts", DEFAULT_LENGTH))
        self._pid = 4000

    def read(self) -> Situation:
        document = self._document
        programs = tuple(one for row in document.get("processes", ()) for one in self._programs(row))
        grants = (
            *(self._grant(row) for row in document.get("jobs", ())),
            *(self._grant(row) for row in document.get("pods", ())),
        )
        events = tuple(self._event(row) for row in document.get("events", ()))
        gpu_facts: dict[Place, dict[str, Schedule]] = {}
        for row in document.get("gpus", ()):
            facts = {name: self._schedule(value) for name, value in row.items() if name != "gpu"}
            for place in parse_places(row["gpu"]):
                gpu_facts.setdefault(place, {}).update(facts)
        places = [place for program in programs for place in program.places]
        places += [place for grant in grants for place in grant.places]
        starts = document.get("starts")
        return Situation(
            name=self._name,
            why=self._why,
            lasts=self._lasts,
            interval=parse_duration(document.get("every", DEFAULT_INTERVAL)),
            start=START if starts is None else starts.timestamp(),
            nodes=self._nodes([*places, *gpu_facts]),
            programs=programs,
            grants=grants,
            gpu_facts=gpu_facts,
            events=events,
            others=tuple(document.get("others", ())),
            clusters=_clusters(document.get("slurm") or []),
            expected=self._expected(document.get("expect") or {}),
            rails=tuple(rail for row in document.get("rails", ()) for rail in self._rails(row)),
            nccl_jobs=tuple(self._nccl_job(row) for row in document.get("nccl", ())),
        )

    def _clock(self, text: str | float) -> Schedule:
        """`-1h`, or seconds that change: `3600 until 1h, 0`."""
        is_constant = not isinstance(text, str) or " " not in text
        return self._schedule(parse_duration(text) if is_constant else text)

    def _time(self, text: str | float) -> float:
        return parse_time(text, self._lasts)

    def _schedule(self, text: str | float) -> Schedule:
        return parse_schedule(text, self._lasts)

    def _span(self, row: Mapping[str, Any]) -> Span:
        return Span(self._time(row["from"]) if "from" in row else float("-inf"), self._end(row))

    def _end(self, row: Mapping[str, Any]) -> float:
        return self._time(row["to"]) if row.get("to", "end") != "end" else float("inf")

    def _nodes(self, places: Sequence[Place]) -> dict[str, Node]:
        found = {}
        for name, row in self._document.get("nodes", {}).items():
            about = {"gpus": row} if isinstance(row, int) else dict(row)
            _refuse_unknown(about, {"gpus", "model", "clock", "host"}, "node")
            clock = about.pop("clock", None)
            found[name] = Node(name, clock=None if clock is None else self._clock(clock), **about)
        if not found:
            names = sorted({place.node for place in places}) or ["n1"]
            counts = {name: 1 + max((p.gpu for p in places if p.node == name), default=0) for name in names}
            found = {name: Node(name, count) for name, count in counts.items()}
        for place in places:
            if place.gpu >= found[place.node].gpus:
                raise SituationError(f"{place.text} is not one of {found[place.node].gpus} GPUs")
        return found

    def _programs(self, row: Mapping[str, Any]) -> Iterator[Program]:
        _refuse_unknown(row, _PROCESS | PROCESS_FACTS, "process")
        span = self._span(row)
        started = parse_duration(row["started"]) if "started" in row else max(span.begin, -86400.0)
        facts: dict[str, Schedule | None] = {"sm": self._schedule(0), "memory": self._schedule(10)}
        for name in PROCESS_FACTS & row.keys():
            facts[name] = None if row[name] == "unknown" else self._schedule(row[name])
        places = parse_places(row["gpu"])
        groups = [places] if row.get("one_process") else [(place,) for place in places]
        for group in groups:
            self._pid += 1
            yield Program(
                pid=row.get("pid", self._pid),
                places=group,
                span=span,
                started=started,
                facts=facts,
                kind=row.get("type", "C"),
                in_proc=row.get("in_proc", True),
                **{
                    name: str(row[name])
                    for name in ("user", "command", "job", "step", "pod", "pod_uid", "container", "launcher")
                    if name in row
                },
            )

    def _grant(self, row: Mapping[str, Any]) -> Grant:
        _refuse_unknown(row, _GRANT, "job or pod")
        texts = {
            name: str(row[name])
            for name in ("job", "pod", "user", "account", "partition", "container", "state")
            if name in row
        }
        return Grant(
            places=parse_places(row["gpus"]),
            span=self._span(row),
            submitted=parse_duration(row["submitted"]) if "submitted" in row else self._span(row).begin,
            is_known_on_node=row.get("prolog", True),
            **texts,
        )

    def _rails(self, row: Mapping[str, Any]) -> Iterator[Rail]:
        _refuse_unknown(row, _RAIL, "rail")
        facts = {name: self._schedule(value) for name, value in row.items() if name != "gpu"}
        return (Rail(place, facts) for place in parse_places(row["gpu"]))

    def _nccl_job(self, row: Mapping[str, Any]) -> NcclJob:
        _refuse_unknown(row, _NCCL, "NCCL job")
        more = {name: row[name] for name in ("rank", "reason") if name in row}
        span = self._span(row) if "from" in row else Span(float("inf"), float("inf"))
        return NcclJob(parse_places(row["gpus"]), span, **more)

    def _event(self, row: Mapping[str, Any]) -> Event:
        (kind,) = EVENTS & row.keys()
        what = row[kind]
        if kind in ("swapped", "mig", "lost"):
            (what,) = parse_places(what)
        span = self._span(row)
        if "at" in row:
            at = self._time(row["at"])
            span = Span(at, float("inf") if kind in ("swapped", "mig") else at)
        return Event(kind, what, span, {name: row[name] for name in row.keys() - {kind, "at", "from", "to"}})

    def _expected(self, row: Mapping[str, Any]) -> Expected:
        _refuse_unknown(row, _EXPECT, "expect")
        return Expected(
            now=tuple(self._finding(one) for one in row.get("now", ())),
            past=tuple(self._finding(one) for one in row.get("past", ())),
            alerts=tuple(_alert(one) for one in row.get("alerts", ())),
            fired=tuple(_alert(one) for one in row.get("fired", ())),
            hours={str(name): hours for name, hours in row.get("hours", {}).items()},
            receipts={str(name): about for name, about in row.get("receipt", {}).items()},
            policy={str(name): what for name, what in row.get("policy", {}).items()},
            digests=row.get("digests", {}),
            may=frozenset(row.get("may", ())),
        )

    def _finding(self, row: str | Mapping[str, Any]) -> ExpectedFinding:
        if isinstance(row, str):
            return ExpectedFinding(tuple(row.split("|")))
        ((kind, about),) = row.items()
        _refuse_unknown(about, _FINDING, kind)
        return ExpectedFinding(
            tuple(kind.split("|")),
            gpus=parse_places(about["gpus"]) if "gpus" in about else None,
            owner=about.get("owner"),
            since=self._time(about["since"]) if "since" in about else None,
            hours=about.get("hours"),
            says=_texts(about.get("says", ())),
            never_says=_texts(about.get("never_says", ())),
        )


def _alert(row: str | Mapping[str, Any]) -> ExpectedAlert:
    if isinstance(row, str):
        return ExpectedAlert(tuple(row.split("|")))
    ((name, about),) = row.items()
    _refuse_unknown(about, {"says", "never_says"}, name)
    return ExpectedAlert(
        tuple(name.split("|")), _texts(about.get("says", ())), _texts(about.get("never_says", ()))
    )


def _texts(texts: str | Sequence[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _refuse_unknown(row: Mapping[str, Any], known: set[str], what: str) -> None:
    if unknown := row.keys() - known:
        raise SituationError(f"{what}: unknown keys {sorted(unknown)}")
