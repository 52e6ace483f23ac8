"""Days of a node as a random generator makes them: what people do on GPUs, and what goes wrong there.

Every day is a situation in the language of `situations/`. Its names contain two marks, which `fleet.py`
replaces when it repeats a recorded day: `CELL` in names of nodes, `SLOT` in everything that is new each day
(users, jobs, pods, PIDs). Times are seconds of the day. `INNOCENT_DAYS` accuse nobody; each of `FAULTS` puts
one fault into a day in which other people go on working.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuscope.vendors.nvidia.xids import DRIVER_XIDS, NVLINK_XIDS
from tests.judgement.situation import Place, Situation, parse_situation

CELL, SLOT = "8888", "7777"
DAY_SECONDS = 86400
INTERVAL = 60
NODE, SECOND_NODE, SILENT_NODE = (f"n{CELL}{letter}" for letter in "abr")
"""The last has no agent: only Slurm knows it."""
GPUS = 4
MINUTE, HOUR = 60, 3600
LEAD_SECONDS = 900
"""An idle time is known after it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What must be found, and nothing else."""

    kinds: tuple[str, ...]
    """Any of them is right; together they cost what the fault costs."""
    begin: float
    end: float
    lost_gpus: float | None = None
    """How many GPUs are lost while it lasts; None: it costs no GPU time."""
    gpus: tuple[Place, ...] | None = None
    owner: str | None = None
    seen_after: float = 0.0
    """It cannot be known earlier."""
    is_dated: bool = True
    """Whether its beginning is known."""
    is_accusation: bool = True
    """False: a fact about a node that nobody is blamed for, such as a reboot."""

    @property
    def gpu_hours(self) -> float | None:
        return None if self.lost_gpus is None else self.lost_gpus * (self.end - self.begin) / HOUR


@dataclass
class Day:
    """A day that is being written."""

    rng: random.Random
    nodes: dict[str, Any] = field(default_factory=lambda: {NODE: GPUS})
    processes: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)
    gpu_facts: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    slurm: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    may: set[str] = field(default_factory=set)
    """Facts beneath a fault, which may be found and need not."""
    starts: float = 0.0
    """Nobody works before."""
    names: int = 0

    def number(self) -> int:
        self.names += 1
        return self.names

    def person(self) -> str:
        return f"{self.rng.choice(PEOPLE)}{self.number()}-{SLOT}"

    def seconds(self, first: float, last: float) -> int:
        return self.rng.randint(int(first), int(last))

    def process(self, place: Place, begin: float, end: float, **row: Any) -> None:
        pid = int(f"{SLOT}{self.number():03}")
        self.processes.append({"gpu": place.text, "from": _at(begin), "to": _at(end), "pid": pid, **row})

    def job(self, places: Sequence[Place], begin: float, end: float, user: str, **row: Any) -> int:
        number = int(f"{SLOT}{self.number():03}")
        gpus = [place.text for place in places]
        self.jobs.append({"job": number, "user": user, "gpus": gpus, "from": _at(begin), "to": _at(end), **row})
        return number

    def pod(self, places: Sequence[Place], begin: float, end: float) -> str:
        name = f"ml/pod{self.number()}-{SLOT}"
        gpus = [place.text for place in places]
        self.pods.append({"pod": name, "gpus": gpus, "from": _at(begin), "to": _at(end)})
        return name

    def event(self, kind: str, what: object, **row: Any) -> None:
        self.events.append({kind: what, **row})

    def facts(self, place: Place, **row: Any) -> None:
        self.gpu_facts.append({"gpu": place.text, **row})

    def to_situation(self, name: str) -> Situation:
        document = {
            "lasts": _at(DAY_SECONDS - INTERVAL),
            "every": _at(INTERVAL),
            "nodes": self.nodes,
            "processes": self.processes,
            "jobs": self.jobs,
            "pods": self.pods,
            "gpus": self.gpu_facts,
            "events": self.events,
            "slurm": self.slurm,
        }
        return parse_situation(name, f"# {name}.\n" + json.dumps(document))


PEOPLE = ("ann", "bea", "cal", "dan", "eve", "fin", "gil", "hal", "ida", "jil", "kit", "lia", "mia", "ned")
Session = Callable[[Day, Sequence[Place], float, float], None]


def _at(seconds: float) -> str:
    return f"{round(seconds)}s"


def board(index: int, node: str = NODE) -> Place:
    return Place(node, index)


# What people do


def notebook(day: Day, places: Sequence[Place], begin: float, end: float) -> None:
    """Somebody computes for some seconds, reads the result, and thinks; a coffee takes less than 15 minutes."""
    for place in places:
        period = day.seconds(4, 13) * MINUTE
        sm = f"0.{day.seconds(3, 9)} for {day.seconds(20, 200)}s every {period}s"
        day.process(place, begin, end, user=day.person(), command="jupyter", sm=sm, memory=day.seconds(2, 30))


def training(day: Day, places: Sequence[Place], begin: float, end: float) -> None:
    """Ranks of one launcher: they compile for some minutes, compute, and write checkpoints together."""
    user, launcher = day.person(), f"{SLOT}{day.number():03}"
    for place in places:
        day.process(
            place, begin, end, user=user, launcher=launcher, sm=_with_checkpoints(day, begin), memory=60
        )


def _with_checkpoints(day: Day, begin: float) -> str:
    warm, pause = day.seconds(1, 9) * MINUTE, day.seconds(1, 5) * MINUTE
    return f"0 until {_at(begin + warm)}, 0.93 pausing {pause}s every {day.seconds(1, 3) * 30}m"


def inference(day: Day, places: Sequence[Place], begin: float, end: float) -> None:
    """A server with few requests."""
    for place in places:
        sm = day.rng.choice(["0.02", "0.04", f"0.5 for 15s every {day.seconds(5, 13)}m"])
        thread = day.rng.choice([0.1, 0.99])  # some poll
        day.process(
            place, begin, end, user=day.person(), command="vllm", sm=sm, memory=70, busiest_thread=thread, cpu=1
        )


def transcoding(day: Day, places: Sequence[Place], begin: float, end: float) -> None:
    for place in places:
        engine = day.rng.choice(["encoder", "decoder"])
        day.process(place, begin, end, user=day.person(), command="ffmpeg", memory=2, **{engine: 0.7})


def display(day: Day, places: Sequence[Place], begin: float, end: float) -> None:
    for place in places:
        day.process(place, begin, end, user="root", command="Xorg", type="G", memory=0.1)
        day.process(place, begin, end, user=day.person(), command="gnome-shell", type="G", memory=0.3)


def multi_process_service(day: Day, places: Sequence[Place], begin: float, end: float) -> None:
    for place in places:
        day.process(place, begin, end, user="root", command="nvidia-cuda-mps-server", memory=0.03)
        for share in (0.4, 0.3):
            day.process(place, begin, end, user=day.person(), type="M", sm=share)


def two_programs(day: Day, places: Sequence[Place], begin: float, end: float) -> None:
    """One user and one command: a training on some GPUs and a notebook on another."""
    user = day.person()
    for number, place in enumerate(places):
        sm = "0.9" if number else f"0.5 for 60s every {day.seconds(5, 13)}m"
        day.process(place, begin, end, user=user, sm=sm)


def neighbours(day: Day, places: Sequence[Place], begin: float, end: float) -> None:
    """Strangers of different speed: nobody waits for the other."""
    for place in places:
        day.process(place, begin, end, user=day.person(), sm=day.rng.choice([0.97, 0.45, 0.2]))


def one_process(day: Day, places: Sequence[Place], begin: float, end: float) -> None:
    """One process on several GPUs, as with tensor parallelism."""
    day.processes.append(
        {
            "gpu": [place.text for place in places],
            "one_process": True,
            "from": _at(begin),
            "to": _at(end),
            "pid": int(f"{SLOT}{day.number():03}"),
            "user": day.person(),
            "sm": 0.7,
        }
    )


def pods(day: Day, places: Sequence[Place], begin: float, end: float) -> None:
    """A pod whose image is pulled for some minutes; it is created again in between."""
    middle = day.seconds(begin + 30 * MINUTE, end - 30 * MINUTE)
    for first, last in ((begin, middle), (middle + 30, end)):
        pod, start = day.pod(places, first, last), day.seconds(first + 30, first + 11 * MINUTE)
        for place in places:
            day.process(place, start, last, pod=pod, user=day.person(), sm=0.8, memory=40)


def jobs(day: Day, places: Sequence[Place], begin: float, end: float) -> None:
    """Slurm jobs one after the other; each needs a moment to start."""
    at = begin
    while at + 20 * MINUTE < end:
        last = min(end, at + day.seconds(15 * MINUTE, 4 * HOUR))
        user, start = day.person(), day.seconds(at + 10, at + 8 * MINUTE)
        number = day.job(places, at, last, user, submitted=_at(at - min(at, day.seconds(0, 2 * HOUR))))
        for place in places:
            day.process(place, start, last, user=user, job=number, sm=0.85, memory=50)
        at = last + day.seconds(5, 10 * MINUTE)


WITHOUT_SLURM: tuple[Session, ...] = (
    notebook, training, inference, transcoding, display, multi_process_service, two_programs, neighbours,
    one_process, pods,
)  # fmt: skip
WITH_SLURM: tuple[Session, ...] = (jobs,)
"""On a node of Slurm a process without a job is a finding."""


def sessions(day: Day, places: Sequence[Place], kinds: Sequence[Session] = WITHOUT_SLURM) -> None:
    """What happens on some GPUs in the course of a day: one use after the other, with gaps."""
    at = day.starts + day.seconds(0, 40 * MINUTE)
    while at + 90 * MINUTE < DAY_SECONDS:
        end = min(DAY_SECONDS - INTERVAL, at + day.seconds(80 * MINUTE, 9 * HOUR))
        day.rng.choice(kinds)(day, places, at, end)
        at = end + day.seconds(0, 50 * MINUTE)


def others(day: Day, places: Sequence[Place], kinds: Sequence[Session] = WITHOUT_SLURM) -> None:
    """The GPUs of a node, in groups that work together."""
    left = list(places)
    while left:
        count = min(len(left), day.rng.choice([1, 1, 2, 4]))
        sessions(day, left[:count], kinds)
        left = left[count:]


ALL = tuple(board(index) for index in range(GPUS))


def busy_node(day: Day) -> None:
    others(day, ALL)


def node_of_jobs(day: Day) -> None:
    """A node whose prolog says which job has which GPU."""
    others(day, ALL, WITH_SLURM)


def restarts_and_gaps(day: Day) -> None:
    """The agent restarts now and then, and some scrapes are missed."""
    others(day, ALL)
    for _ in range(4):
        day.event("agent_restarts", NODE, at=_at(day.seconds(HOUR, 23 * HOUR)))
    for _ in range(4):
        begin = day.seconds(HOUR, 23 * HOUR)
        day.event("scrape_gap", NODE, **{"from": _at(begin), "to": _at(begin + day.seconds(60, 240))})
    begin = day.seconds(HOUR, 20 * HOUR)
    day.event("processes_unknown", NODE, **{"from": _at(begin), "to": _at(begin + day.seconds(600, 7200))})


def reboot(day: Day) -> None:
    """The node is down for some minutes, and everybody starts again."""
    down = day.seconds(3, 12) * MINUTE
    day.starts = down + 2 * MINUTE
    day.event("node_down", NODE, **{"from": "0s", "to": _at(down)})
    day.faults.append(_node_down(0, down))
    others(day, ALL)


def _node_down(begin: float, end: float, *, is_accusation: bool = False) -> Fault:
    return Fault(("node_down",), begin, end, float(GPUS), is_accusation=is_accusation)


def swapped_card(day: Day) -> None:
    """A card is replaced while the node is off."""
    down = day.seconds(10, 40) * MINUTE
    day.starts = down + 2 * MINUTE
    day.event("node_down", NODE, **{"from": "0s", "to": _at(down)})
    day.event("swapped", ALL[-1].text, at=_at(down))
    day.faults.append(_node_down(0, down))
    others(day, ALL)


def wrong_clock(day: Day) -> None:
    """The node's clock is off until somebody sets it: that is found, and nothing else."""
    end, error = 23 * HOUR, day.rng.choice([-HOUR, HOUR, -7 * MINUTE])
    day.nodes[NODE] = {"gpus": GPUS, "clock": f"{error} until {_at(end)}, 0"}
    day.faults.append(Fault(("clock_skew",), 0, end, is_accusation=False))
    others(day, ALL)


def slightly_wrong_clock(day: Day) -> None:
    day.nodes[NODE] = {"gpus": GPUS, "clock": day.rng.choice(["-3s", "2s"])}
    others(day, ALL)


def mig_changes(day: Day) -> None:
    """A GPU is split and made whole again."""
    others(day, ALL[:-1])
    split, whole = day.seconds(4 * HOUR, 6 * HOUR), day.seconds(18 * HOUR, 20 * HOUR)
    card = ALL[-1]
    training(day, [card], HOUR, split - 2 * MINUTE)
    day.event("mig", card.text, at=_at(split), profiles=["3g.40gb", "3g.40gb"])
    day.event("mig", card.text, at=_at(whole), profiles=[])
    for number, share in enumerate((0.8, 0.05)):
        instance = Place(card.node, card.gpu, number)
        day.process(instance, split + 2 * MINUTE, whole - 2 * MINUTE, user=day.person(), memory=20)
        day.facts(instance, activity=share)
    training(day, [card], whole + 5 * MINUTE, 23 * HOUR)


def slurm_node(day: Day) -> None:
    """Everything on two nodes is a Slurm job; jobs wait while all GPUs are given away, or for another job."""
    _slurm_cluster(day)
    for node in (NODE, SECOND_NODE):
        sessions(day, [board(index, node) for index in (0, 1)], WITH_SLURM)
        sessions(day, [board(index, node) for index in (2, 3)], WITH_SLURM)
    day.slurm["pending"] = [_pending(day, 2 * HOUR, 20 * HOUR, "Dependency")]


def full_cluster(day: Day) -> None:
    """One job has all GPUs for most of the day, and others wait for them."""
    _slurm_cluster(day)
    places = [board(index, node) for node in (NODE, SECOND_NODE) for index in range(GPUS)]
    begin, end = day.seconds(HOUR, 3 * HOUR), day.seconds(18 * HOUR, 23 * HOUR)
    user = day.person()
    number = day.job(places, begin, end, user, prolog=day.rng.random() < 0.5)
    sm = _with_checkpoints(day, begin + 2 * MINUTE)
    for place in places:
        day.process(place, begin + 2 * MINUTE, end, user=user, job=number, sm=sm, memory=60)
    day.slurm["pending"] = [_pending(day, begin + HOUR, end - HOUR, "Resources")]


def _slurm_cluster(day: Day, **silent: Any) -> None:
    day.nodes[SECOND_NODE] = GPUS
    nodes: dict[str, Any] = {NODE: GPUS, SECOND_NODE: GPUS}
    if silent:
        nodes[SILENT_NODE] = {"gpus": 8, **silent}
    day.slurm = {"read_by": NODE, "nodes": nodes}


def _pending(day: Day, begin: float, end: float, reason: str) -> dict[str, Any]:
    number = int(f"{SLOT}{day.number():03}")
    times = {"from": _at(begin), "to": _at(end)}
    return {"job": number, "user": day.person(), "reason": reason, "gpus": 4, **times}


INNOCENT_DAYS: tuple[Callable[[Day], None], ...] = (
    busy_node, busy_node, busy_node, node_of_jobs, restarts_and_gaps, restarts_and_gaps, reboot, swapped_card,
    wrong_clock, slightly_wrong_clock, mig_changes,
)  # fmt: skip
INNOCENT_SLURM_DAYS: tuple[Callable[[Day], None], ...] = (slurm_node, full_cluster)


# What goes wrong


def _times(day: Day, least: float = 2 * HOUR, most: float = 9 * HOUR) -> tuple[int, int]:
    begin = day.seconds(2 * HOUR, 12 * HOUR)
    return begin, begin + day.seconds(least, most)


def _worker(day: Day, places: Sequence[Place], end: float = DAY_SECONDS - HOUR) -> str:
    """A user whose ranks work all day on these GPUs."""
    user, launcher = day.person(), f"{SLOT}{day.number():03}"
    for place in places:
        day.process(place, HOUR, end, user=user, launcher=launcher, sm=0.9, memory=40)
    return user


def held_idle(day: Day) -> None:
    (begin, end), user = _times(day), day.person()
    places, launcher = ALL[: day.seconds(1, 3)], f"{SLOT}{day.number():03}"
    for place in places:
        sm = f"0.9 until {_at(begin)}, 0 until {_at(end)}, 0.9"
        day.process(place, HOUR, DAY_SECONDS - HOUR, user=user, launcher=launcher, sm=sm, memory=40)
    others(day, ALL[len(places) :])
    day.faults.append(Fault(("held_idle",), begin, end, len(places), places, user, LEAD_SECONDS))


def held_idle_by_a_job(day: Day) -> None:
    (begin, end), user = _times(day), day.person()
    number = day.job(ALL[:2], HOUR, end, user)
    for place in ALL[:2]:
        day.process(place, HOUR + 60, end, user=user, job=number, sm=f"0.9 until {_at(begin)}, 0", memory=40)
    others(day, ALL[2:], WITH_SLURM)
    day.faults.append(Fault(("held_idle",), begin, end, 2, ALL[:2], user, LEAD_SECONDS))


def held_idle_by_a_pod(day: Day) -> None:
    begin, end = _times(day)
    pod = day.pod(ALL[:1], HOUR, end)
    day.process(ALL[0], HOUR + 60, end, pod=pod, sm=f"0.9 until {_at(begin)}, 0", memory=40)
    others(day, ALL[1:])
    day.faults.append(Fault(("held_idle",), begin, end, 1, ALL[:1], pod, LEAD_SECONDS))


def idle_mig_instance(day: Day) -> None:
    (begin, end), user, card = _times(day), day.person(), ALL[0]
    day.event("mig", card.text, at="0s", profiles=["3g.40gb", "3g.40gb"])
    for number, activity in enumerate((f"0.6 until {_at(begin)}, 0 until {_at(end)}, 0.6", "0.7")):
        instance = Place(card.node, card.gpu, number)
        owner = day.person() if number else user
        day.process(instance, HOUR, DAY_SECONDS - HOUR, user=owner, memory=20)
        day.facts(instance, activity=activity)
    others(day, ALL[1:])
    places = (Place(card.node, card.gpu, 0),)
    day.faults.append(Fault(("held_idle",), begin, end, 3 / 7, places, user, LEAD_SECONDS))


def only_gpu_0_works(day: Day) -> None:
    (begin, end), user, launcher = _times(day), day.person(), f"{SLOT}{day.number():03}"
    count = day.seconds(2, GPUS)
    for place in ALL[:count]:
        sm = 0 if place.gpu else 0.9
        day.process(place, begin, end, user=user, launcher=launcher, sm=sm, memory=40)
    others(day, ALL[count:])
    idle = ALL[1:count]
    day.faults.append(Fault(("only_some_work",), begin, end, len(idle), idle, user, LEAD_SECONDS))


def job_without_a_process(day: Day) -> None:
    """Nobody reads Slurm here, so only the job's number is known."""
    begin, end = _times(day)
    number = day.job(ALL[:2], begin, end, day.person())
    others(day, ALL[2:], WITH_SLURM)
    owner = f"job {number}"
    day.faults.append(Fault(("allocated_unused",), begin, end, 2, ALL[:2], owner, LEAD_SECONDS))


def job_uses_some_gpus(day: Day) -> None:
    (begin, end), user = _times(day), day.person()
    number = day.job(ALL, begin, end, user)
    day.process(ALL[0], begin + 60, end, user=user, job=number, sm=0.9)
    day.faults.append(Fault(("allocated_unused",), begin, end, 3, ALL[1:], user, LEAD_SECONDS))


def pod_without_a_process(day: Day) -> None:
    begin, end = _times(day)
    pod = day.pod(ALL[:1], begin, end)
    others(day, ALL[1:])
    day.faults.append(Fault(("allocated_unused",), begin, end, 1, ALL[:1], pod, LEAD_SECONDS))


def _xid(day: Day, code: int, kind: str, *, ends_program: bool = False) -> None:
    begin, _ = _times(day)
    _worker(day, ALL[:1], begin if ends_program else DAY_SECONDS - HOUR)
    others(day, ALL[1:])
    day.event("xid", code, gpu=ALL[0].text, at=_at(begin))
    day.faults.append(Fault((kind,), begin, begin + HOUR, gpus=ALL[:1]))


def hardware_xid(day: Day) -> None:
    _xid(day, day.rng.choice([48, 95, 140, 143]), "xid_hardware")


def program_xid(day: Day) -> None:
    _xid(day, day.rng.choice([13, 31, 43]), "xid_application", ends_program=True)


def nvlink_xid(day: Day) -> None:
    _xid(day, day.rng.choice(sorted(NVLINK_XIDS)), "xid_nvlink")


def driver_xid(day: Day) -> None:
    _xid(day, day.rng.choice(sorted(DRIVER_XIDS)), "xid_driver")


def contained_xid(day: Day) -> None:
    _xid(day, 94, "xid_contained", ends_program=True)


def uncorrectable_error(day: Day) -> None:
    facts: dict[str, Any] = {"ecc_errors.uncorrected.volatile": "0 until {}, 2 until {}, 0"}
    _lasting(day, "ecc_uncorrected", **facts)


def pending_row(day: Day) -> None:
    _lasting(day, "row_remap_pending", row_remap_pending="0 until {}, 1 until {}, 0")


def half_of_the_lanes(day: Day) -> None:
    _lasting(day, "pcie_degraded", pcie_link_width="16 until {}, 8 until {}, 16", pcie_link_width_max=16)


def link_down(day: Day) -> None:
    links: dict[str, Any] = {"link_up.0": 1, "link_up.1": "1 until {}, 0 until {}, 1"}
    _lasting(day, "nvlink_down", **links)


def link_errors(day: Day) -> None:
    """Each error is found for an hour after it."""
    begin, _ = _times(day)
    _worker(day, ALL[:1])
    others(day, ALL[1:])
    day.facts(ALL[0], **{"link_errors.0.replay": f"0 until {_at(begin)}, 3"})
    day.faults.append(Fault(("nvlink_errors",), begin, begin + HOUR, gpus=ALL[:1]))


def too_hot(day: Day) -> None:
    _throttled(day, "hw_thermal", "hw_thermal_slowdown")


def power_brake(day: Day) -> None:
    _throttled(day, "power_brake", "hw_power_brake_slowdown")


def _throttled(day: Day, kind: str, reason: str) -> None:
    begin, end = _times(day)
    facts: dict[str, Any] = {
        f"throttle.{reason}": "0 until {}, 1 until {}, 0",
        "clock": "1980 until {}, 990 until {}, 1980",
    }
    _lasting(day, kind, "throttled", lost_gpus=0.5, times=(begin, end), **facts)


def _lasting(
    day: Day,
    *kinds: str,
    lost_gpus: float | None = None,
    times: tuple[int, int] | None = None,
    **facts: Any,
) -> None:
    """Facts of a busy GPU that are wrong for some hours; `{}` are their ends."""
    begin, end = times or _times(day)
    _worker(day, ALL[:1])
    others(day, ALL[1:])
    texts = {
        name: value.format(_at(begin), _at(end)) if isinstance(value, str) else value
        for name, value in facts.items()
    }
    day.facts(ALL[0], **texts)
    day.faults.append(Fault(kinds, begin, end, lost_gpus, ALL[:1]))


def lost_gpu(day: Day) -> None:
    begin, end = _times(day)
    _worker(day, ALL[:1], begin)
    others(day, ALL[1:])
    day.event("xid", 79, gpu=ALL[0].text, at=_at(begin))
    day.event("lost", ALL[0].text, **{"from": _at(begin), "to": _at(end)})
    day.may.add("xid_hardware")
    day.faults.append(Fault(("gpu_lost",), begin, end, 1, ALL[:1]))


def hung_gpus(day: Day) -> None:
    (begin, end), user, launcher = _times(day), day.person(), f"{SLOT}{day.number():03}"
    begin -= begin % INTERVAL  # a mean over a minute that hangs in part is not low
    for place in ALL[:2]:
        day.process(place, HOUR, end, user=user, launcher=launcher, sm=1.0, memory=40)
        until = _at(begin)
        day.facts(place, power=f"0.8 until {until}, 0.25 until {_at(end)}, 0.1")
        day.facts(place, pcie=f"1000 until {until}, 0")
    others(day, ALL[2:])
    day.faults.append(Fault(("hung",), begin, end, 2, ALL[:2], user, seen_after=10 * MINUTE))


def node_is_down(day: Day) -> None:
    begin, end = _times(day)
    for place in ALL:
        user = day.person()
        day.process(place, HOUR, begin, user=user, sm=0.9)
        day.process(place, end + 120, DAY_SECONDS - HOUR, user=user, sm=0.9)
    day.event("node_down", NODE, **{"from": _at(begin), "to": _at(end)})
    day.faults.append(_node_down(begin, end, is_accusation=True))


def stuck_agent(day: Day) -> None:
    begin, end = _times(day)
    _worker(day, ALL)
    day.event("agent_stuck", NODE, **{"from": _at(begin), "to": _at(end)})
    day.faults.append(Fault(("node_stale",), begin, end, seen_after=2 * MINUTE))


def driver_does_not_answer(day: Day) -> None:
    begin, end = _times(day)
    _worker(day, ALL)
    day.event("source_down", "nvml", node=NODE, **{"from": _at(begin), "to": _at(end)})
    day.may |= {"gpus_missing", "gpu_count_dropped"}
    day.faults.append(Fault(("source_down",), begin, end))


def slow_disk(day: Day) -> None:
    _waits(day, "waits_for_disk", io_wait=0.6, cpu=0.3)


def slow_network(day: Day) -> None:
    _waits(day, "waits_for_network", network_wait=0.8, cpu=0.2)


def slow_loader(day: Day) -> None:
    _waits(day, "waits_for_data", busiest_thread=0.99, cpu=1.0, children_cpu=0.9)


def _waits(day: Day, kind: str, **facts: float) -> None:
    begin, end = _times(day)
    user = day.person()
    day.process(ALL[0], begin, end, user=user, sm=0.4, memory=40, reads=80, **facts)
    others(day, ALL[1:])
    # The first ten minutes are its start.
    day.faults.append(Fault((kind,), begin + 10 * MINUTE, end, 0.6, ALL[:1], user))


def slow_rank(day: Day) -> None:
    (begin, end), user, launcher = _times(day), day.person(), f"{SLOT}{day.number():03}"
    for place in ALL[:2]:
        day.process(place, begin, end, user=user, launcher=launcher, sm=1.0, memory=40)
    power, back = (0.27, 0.85), f"until {_at(end)}, 0.1"
    for place, share in zip(ALL, power, strict=False):
        day.facts(place, power=f"{share} {back}", pcie=800)
    others(day, ALL[2:])
    day.faults.append(Fault(("waits_for_rank",), begin + 10 * MINUTE, end, 0.73, ALL[:1], user))


def orphaned_memory(day: Day) -> None:
    begin, end = _times(day)
    day.process(ALL[0], HOUR, begin, user=day.person(), sm=0.9)
    others(day, ALL[1:])
    day.facts(ALL[0], orphan_memory=f"0 until {_at(begin)}, 40 until {_at(end)}, 0")
    day.faults.append(Fault(("orphan_memory",), begin, end, 40.6 / 80, ALL[:1]))


def leak(day: Day) -> None:
    (begin, _), user = _times(day), day.person()
    end = begin + 100 * MINUTE
    memory = f"10 until {_at(begin)}, 10 to 75 until {_at(end)}, 5"
    day.process(ALL[0], HOUR, end, user=user, sm=0.9, memory=memory)
    others(day, ALL[1:])
    day.faults.append(Fault(("memory_leak",), begin, end, None, ALL[:1], user, 50 * MINUTE, is_dated=False))


def slurm_node_down(day: Day) -> None:
    begin, end = _times(day)
    _slurm_cluster(day, down=f"0 until {_at(begin)}, 1 until {_at(end)}, 0", reason="power")
    _slurm_jobs(day)
    day.faults.append(Fault(("slurm_nodes_down",), begin, end, 8))


def slurm_node_drained(day: Day) -> None:
    begin, end = _times(day)
    _slurm_cluster(day, drained=f"0 until {_at(begin)}, 1 until {_at(end)}, 0", reason="fan")
    _slurm_jobs(day)
    day.faults.append(Fault(("slurm_drained",), begin, end))


def slurm_job_without_a_process(day: Day) -> None:
    """No prolog: only the agent that reads Slurm knows of the job."""
    _slurm_cluster(day)
    (begin, end), user = _times(day), day.person()
    places = (board(0, SECOND_NODE), board(1, SECOND_NODE))
    day.job(places, begin, end, user, prolog=False)
    sessions(day, ALL, WITH_SLURM)
    day.faults.append(Fault(("allocated_unused",), begin, end, 2, places, user, LEAD_SECONDS))


def _slurm_jobs(day: Day) -> None:
    for node in (NODE, SECOND_NODE):
        sessions(day, [board(index, node) for index in range(GPUS)], WITH_SLURM)


FAULTS: tuple[Callable[[Day], None], ...] = (
    held_idle, held_idle_by_a_job, held_idle_by_a_pod, idle_mig_instance, only_gpu_0_works,
    job_without_a_process, job_uses_some_gpus, pod_without_a_process, hardware_xid, program_xid, nvlink_xid,
    driver_xid, contained_xid, uncorrectable_error, pending_row, half_of_the_lanes, link_down, link_errors,
    too_hot, power_brake, lost_gpu, hung_gpus, node_is_down, stuck_agent, driver_does_not_answer, slow_disk,
    slow_network, slow_loader, slow_rank, orphaned_memory, leak,
)  # fmt: skip
SLURM_FAULTS: tuple[Callable[[Day], None], ...] = (
    slurm_node_down, slurm_node_drained, slurm_job_without_a_process,
)  # fmt: skip


def make_day(write: Callable[[Day], None], seed: int) -> tuple[Situation, Day]:
    day = Day(random.Random(f"{write.__name__} {seed}"))
    write(day)
    return day.to_situation(write.__name__), day
