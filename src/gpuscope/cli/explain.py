"""Explain an error, a throttle reason, a GPU state, an alert or a metric: meaning, usual cause, next step.

With a running server it also shows how often this was seen, and on which GPUs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from gpuscope.base.errors import GpuscopeError, ServerUnreachable, UsageError
from gpuscope.base.settings import Settings
from gpuscope.cli.output import BOLD, DIM, duration_text, fit_lines, paint, printable, wants_colour
from gpuscope.cli.server_client import add_server_arguments, explained_errors, token_of
from gpuscope.serve.explanations import KINDS, Explanation, find_kind

SETTINGS = ()
USAGE = f"gpuscope explain [{'|'.join(KINDS)}] NAME [options]"

EPILOG = """examples:
  gpuscope explain xid 79                 also: gpuscope explain 79
  gpuscope explain throttle hw_thermal_slowdown
  gpuscope explain state held
  gpuscope explain alert HeldIdle
  gpuscope explain metric gpuscope_gpu_sm_active_ratio
  gpuscope explain xid                    all of them, a line each
"""

MAX_GPUS_SHOWN = 10
LIST_WIDTH = 28
SEEN_HERE = "seen here"
NOT_SEEN_WITHOUT_SERVER = (
    "no server was queried: start `gpuscope up`, or pass --server, to see how often it occurs here"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="|".join(KINDS), help="what to explain; may be left out")
    parser.add_argument(
        "name", metavar="NAME", nargs="?", default="", help="number or name; without it, all are listed"
    )
    add_server_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the explanation as JSON")


def run(args: argparse.Namespace, settings: Settings) -> int:
    kind, name = args.kind, args.name
    if kind not in KINDS:
        if name:
            raise UsageError(f"explain: {kind[:60]!r} is not one of {', '.join(KINDS)}")
        kind, name = find_kind(kind), kind
    explained = KINDS[kind]
    if not name:
        for known in explained.names():
            _print_fact(known, explained.explain(known).facts[0][1], LIST_WIDTH)
        return 0
    explanation = explained.explain(name)
    seen, problem = _seen(args, explanation)
    if args.json:
        document: dict[str, Any] = {"title": explanation.title, **dict(explanation.facts)}
        print(json.dumps(document | ({"seen": seen} if not problem else {}), indent=2))
        return 0
    colour = wants_colour()
    print(paint(explanation.title, BOLD, colour))
    seen_lines = ([problem] if problem else _seen_lines(seen, explanation)) if explanation.seen else ()
    width = max(len(heading) for heading, _ in (*explanation.facts, (SEEN_HERE, "")))
    for heading, text in explanation.facts:
        _print_fact(heading, text, width)
    for number, line in enumerate(seen_lines):
        _print_fact("" if number else SEEN_HERE, line, width, lambda text: paint(text, DIM, colour))
    return 0


def _print_fact(heading: str, text: str, width: int, style: Callable[[str], str] = str) -> None:
    for number, line in enumerate(fit_lines(text, width + 2)):
        print(style(f"{'' if number else heading:>{width}}  {line}"))


def _seen(args: argparse.Namespace, explanation: Explanation) -> tuple[list[dict[str, Any]], str]:
    """The occurrences, or why there are none to show. An unreachable server is not an error."""
    from gpuscope.history.engines.http_connection import connect, post_form

    if not explanation.seen:
        return [], ""
    try:
        with explained_errors():
            connection = connect(args.server, origin="--server", token=token_of(args))
            answer = post_form(connection, "query", {"query": explanation.seen, "time": str(time.time())})
    except ServerUnreachable:
        return [], NOT_SEEN_WITHOUT_SERVER
    except UsageError:
        raise
    except GpuscopeError as error:
        return [], str(error)
    return [
        {
            "node": row["metric"].get("instance", ""),
            "gpu": row["metric"].get("gpu", ""),
            "model": row["metric"].get("model", ""),
            "value": float(row["value"][1]),
        }
        for row in answer["data"]["result"]
    ], ""


def _seen_lines(seen: list[dict[str, Any]], explanation: Explanation) -> Iterable[str]:
    text = explanation.seen_text
    if not seen:
        yield explanation.not_seen
    for row in seen[:MAX_GPUS_SHOWN]:
        value = duration_text(row["value"]) if "{}" not in text else text.format(f"{row['value']:.0f}")
        yield f"{_place(row)}: {value}"
    if len(seen) > MAX_GPUS_SHOWN:
        yield f"and {len(seen) - MAX_GPUS_SHOWN} more"


def _place(row: dict[str, Any]) -> str:
    """`n1:9400 GPU 3, NVIDIA H100`; a count over many GPUs has a model only."""
    model = printable(row["model"], 60)
    if not row["node"]:
        return model or "unknown model"
    gpu = f" GPU {printable(row['gpu'], 12)}" if row["gpu"] else ""
    return f"{printable(row['node'], 60)}{gpu}" + (f", {model}" if model else "")
