"""The catalogue of attacks: for each a name, what is sent, and what must hold.

COMMON must hold under every attack with default limits; `holds` is an additional condition. Each `attacks_*.py`
module in this folder has a tuple `ATTACKS`, collected here. `run` sends the attack and calls
`watch.meanwhile()` at its peak, which returns when all observers were served: this determines the duration of
the attack. Then `run` asserts `holds`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.hostile.victim import MIB, Victim, Watch, running
from tests.local_server import serving_http

COMMON = (
    "memory grows by at most 512 MiB",
    "/-/healthy answers",
    "another client is served",
    "scrapes continue",
    "at most 200 log lines",
)
MAX_GROWTH_BYTES = 512 * MIB
MAX_LOG_LINES = 200


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    sends: str
    holds: str
    run: Callable[[Victim, Watch], None]
    command: tuple[str, ...] = ("server",)
    env: Mapping[str, str] = field(default_factory=dict)
    files: int | None = None
    """RLIMIT_NOFILE of the victim."""
    engine: type[BaseHTTPRequestHandler] | None = None
    """The engine behind `--store {engine}` of the command."""
    question: str = "/api/v1/query?query=up"
    """The request of the other client."""
    prepare: Callable[[Victim], None] | None = None
    """Called before memory is measured: fills a store or a cache."""
    slow: bool = False
    """Takes more than about 3 s: runs with SLOW=1 and in the benchmark."""


@dataclass(frozen=True, slots=True)
class Outcome:
    growth_bytes: int
    log_lines: int
    healthy_p50: float
    healthy_p99: float
    healthy_failures: int
    other_p50: float
    other_longest: float
    scrape_gap_longest: float


def catalogue() -> tuple[Attack, ...]:
    modules = sorted(path.stem for path in Path(__file__).parent.glob("attacks_*.py"))
    found: list[Attack] = []
    for module in modules:
        found += importlib.import_module(f"tests.hostile.{module}").ATTACKS
    return tuple(found)


def _with_engine(command: Sequence[str], port: int) -> list[str]:
    return [word.replace("{engine}", f"http://127.0.0.1:{port}") for word in command]


def carry_out(attack: Attack) -> Outcome:
    """Run one attack on a new victim; raises AssertionError if `holds` is not fulfilled."""
    with (
        nullcontext(0) if attack.engine is None else serving_http(attack.engine) as port,
        running(_with_engine(attack.command, port), env=attack.env, files=attack.files) as victim,
    ):
        (
            victim.get("/-/healthy"),
            victim.get(attack.question),
        )  # the first request loads modules, which is not part of the attack
        if attack.prepare is not None:
            attack.prepare(victim)
        lines = victim.log_lines()
        with victim.watch(attack.question) as watch:
            attack.run(victim, watch)
            growth = watch.growth_bytes()
        return Outcome(
            growth,
            victim.log_lines() - lines,
            watch.healthy.p50(),
            watch.healthy.p99(),
            len(watch.healthy.failures),
            watch.other.p50(),
            watch.other.longest(),
            max(watch.scrape_gaps(), default=0.0),
        )
