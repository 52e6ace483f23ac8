"""A stand-in for `dcgmi` and the host engine behind it, told by a JSON file what to be and what to do.

The file's path is in FAKE_DCGMI and is read again before every sample, so a test changes the machine while the
stream runs. Exit codes and sentences are the recorded ones. Run by path: nothing is imported from the project
but the layouts beside it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from layouts import LAYOUTS, Column  # type: ignore[import-not-found]  # a program of its own, in this folder

DISCONNECTED = "Host engine connection invalid/disconnected"
WIDTHS = {1: 7, 2: 7, 50: 20, 53: 16, 54: 40, 56: 7, 57: 20, 80: 5, 81: 5, 82: 20, 85: 16, 100: 5, 156: 16}


def state() -> dict[str, Any]:
    return json.loads(Path(os.environ["FAKE_DCGMI"]).read_text())  # type: ignore[no-any-return]


def fail(code: int, sentence: str, stream: Any = sys.stderr) -> None:
    print(sentence, file=stream, flush=True)
    sys.exit(code)


def list_fields(now: dict[str, Any]) -> None:
    print("_" * 80 + f"\n{'Long Name':<50}{'Short Name':<20}Field ID\n" + "_" * 80)
    for field_id in now["known"]:
        print(f"{'field_' + str(field_id):<50} {'F' + str(field_id):<20}{field_id}")


def discover(now: dict[str, Any]) -> None:
    if now["layout"] == "1.x":
        fail(254, "PARSE ERROR: Argument: -c Couldn't match argument")
    print("+---+\n| Instance Hierarchy |\n+===+")
    for gpu in now["gpus"]:
        print(
            f"| GPU {gpu['id']}             | GPU {gpu['values'].get('54')} (EntityID: {gpu['id']})         |"
        )
        for instance in gpu.get("instances", ()):
            gi = instance["gpu_instance"]
            print(f"| -> I {gpu['id']}/{gi}          | GPU Instance (EntityID: {instance['entity']})  |")
            print(f"|    -> CI {gpu['id']}/{gi}/0    | Compute Instance (EntityID: {instance['entity']}) |")


def rows(now: dict[str, Any], instances_only: bool) -> list[tuple[str, dict[str, Any]]]:
    if instances_only:
        return [
            (f"GPU-I {instance['entity']}", instance["values"])
            for gpu in now["gpus"]
            for instance in gpu.get("instances", ())
        ]
    found = [(f"GPU {gpu['id']}", gpu["values"]) for gpu in now["gpus"]]
    return found[::-1] if now["layout"] == "3.3.9" else found


def monitor(arguments: list[str]) -> None:
    now = state()
    ids = [int(text) for text in arguments[arguments.index("-e") + 1].split(",")]
    delay = int(arguments[arguments.index("-d") + 1]) / 1000
    if now.get("max_ids", 127) < len(ids):
        fail(255, "Got error while creating a Field Group: Bad parameter passed to function")
    for field_id in ids:
        if field_id not in now["known"]:
            fail(
                255,
                f"Error: Got invalid field ID. '{field_id}'. See dcgm_fields.h for a list of valid field IDs.",
            )
    layout = LAYOUTS[now["layout"]]
    columns = [
        Column(f"F{field_id}", WIDTHS.get(field_id, 10), " C" if field_id == 150 else "") for field_id in ids
    ]
    print("\n".join(layout.header(columns)), flush=True)
    if any(field_id in now.get("refused", ()) for field_id in ids):
        text = "This request is serviced by a module of DCGM that is not currently loaded"
        fail(223, f"Error setting watches. Result: -33: {text}\n")
    sample = 0
    while True:
        now = state()
        sample += 1
        if now.get("hang"):
            time.sleep(60)
        if now.get("die"):
            fail(
                235, "Error getting values information. Return -21: Host engine connection invalid/disconnected"
            )
        if sample % 15 == 0:
            print("\n".join(layout.header(columns)))
        for entity, values in rows(now, "-i" in arguments):
            cells = [values.get(str(field_id)) for field_id in ids]
            print(layout.row(entity, columns, cells))
        sys.stdout.write(now.get("rubbish", ""))
        sys.stdout.flush()
        with Path(os.environ["FAKE_DCGMI"] + ".samples").open("a") as printed:
            printed.write(f"{sample}\n")
        time.sleep(delay)


def main() -> None:
    arguments = sys.argv[1:]
    now = state()
    with Path(os.environ["FAKE_DCGMI"] + ".log").open("a") as log:
        log.write(" ".join(arguments) + "\n")
    Path(os.environ["FAKE_DCGMI"] + ".pid").write_text(str(os.getpid()))
    if now.get("no_engine"):
        fail(
            235,
            "Error: Unable to connect to host engine. Host engine connection invalid/disconnected.",
            sys.stdout,
        )
    if now.get("mute"):
        time.sleep(60)
    if arguments[:1] == ["discovery"]:
        discover(now)
    elif "-l" in arguments:
        list_fields(now)
    elif arguments[0] == "dmon":
        monitor(arguments)


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(141)
