"""A stand-in for nvidia-smi that answers from a recorded capture. Run as a script, standard library only.

    python replay.py FOLDER [nvidia-smi's own arguments]

FOLDER/config.json names the capture, its state (idle or load) and the faults; it is read at each run, so that a
test changes the machine while the program runs. Each run's arguments are added to FOLDER/runs.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

RULE = "#" * 80


def read_sections(text: str) -> dict[str, tuple[str, str]]:
    """Section title (`idle :: query (-q)`) -> (the command that was run, what it printed)."""
    sections: dict[str, tuple[str, str]] = {}
    pattern = re.compile(rf"^{RULE}\n# (\w+ :: .*)\n(?:# \$ (.*)\n)?{RULE}\n", re.MULTILINE)
    found = list(pattern.finditer(text))
    for match, following in zip(found, [*found[1:], None], strict=True):
        body = text[match.end() : following.start() if following else len(text)]
        sections[match[1]] = (match[2] or "", body.rstrip("\n") + "\n")
    return sections


class Machine:
    def __init__(self, capture: str, state: str) -> None:
        self._sections = read_sections(Path(capture).read_text("utf-8"))
        self._state = state

    def section(self, title: str) -> tuple[str, str]:
        for name, section in self._sections.items():
            if name.startswith(title):
                return section
        raise SystemExit(f"the capture has no section {title!r}")

    def table(self, option: str, wanted: list[str], only: list[str] | None) -> str:
        """The recorded columns that are `wanted`, in that order; every row, or those of the UUIDs in `only`."""
        command, printed = self.section(f"{self._state} :: {option.removeprefix('--')} (")
        fields = re.search(rf"{option}=(\S+)", command)
        assert fields is not None
        recorded = fields[1].split(",")
        header, *rows = [line.split(", ") for line in printed.rstrip("\n").split("\n")]
        for field in wanted:
            if field not in recorded:
                print(f'Field "{field}" is not a valid field to query.\n')
                raise SystemExit(2)
        columns = [recorded.index(field) for field in wanted]
        uuid = recorded.index("uuid" if "uuid" in recorded else "gpu_uuid")
        kept = [header, *(row for row in rows if only is None or row[uuid] in only)]
        return "".join(", ".join(row[column] for column in columns) + "\n" for row in kept)

    def answer(self, arguments: list[str]) -> str:
        option, _, value = arguments[0].partition("=")
        only = arguments[arguments.index("-i") + 1].split(",") if "-i" in arguments else None
        if option in ("--query-gpu", "--query-compute-apps"):
            return self.table(option, value.split(","), only)
        titles = {
            "--version": "capabilities :: version",
            "--help-query-gpu": "capabilities :: help-query-gpu",
            "-L": "capabilities :: list",
            "-q": f"{self._state} :: query (-q)",
        }
        return self.section(titles[option])[1]


def without_lost(option: str, printed: str, lost: str, arguments: list[str]) -> str:
    """A GPU that fell off the bus: it takes every whole-machine query with it, as in life."""
    message = "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.  Reboot the system"
    if option == "-L":
        return "".join(f"{message}\n" if lost in line else line for line in printed.splitlines(keepends=True))
    if "-i" in arguments and lost not in arguments[-1]:
        return printed
    print(message)
    raise SystemExit(255)


def misbehave(fault: dict[str, Any], printed: str) -> None:
    kind = fault["kind"]
    if kind == "hang":
        if os.fork() == 0:  # a child that keeps the pipes open as well
            time.sleep(600)
        sys.stdout.write(printed[:10])
        sys.stdout.flush()
        time.sleep(600)
    elif kind == "half":
        sys.stdout.write(printed[: int(len(printed) * fault.get("share", 0.5))])
    elif kind == "exit":
        sys.stderr.write(fault.get("stderr", ""))
        sys.stdout.write(fault.get("stdout", ""))
    elif kind == "print":
        sys.stdout.flush()
        sys.stdout.buffer.write(bytes.fromhex(fault["hex"]))
    elif kind == "replace":
        sys.stdout.write(printed.replace(fault["old"], fault["new"]))
    elif kind == "noise":
        sys.stderr.write("WARNING: infoROM is corrupted\n" * 50)
        sys.stdout.write("Welcome to node7, this is a banner\n" + printed)
    sys.stdout.flush()
    raise SystemExit(fault.get("code", 0))


def main() -> None:
    folder, *arguments = sys.argv[1:]
    with (Path(folder) / "runs").open("a") as runs:
        runs.write(json.dumps([os.getpid(), *arguments]) + "\n")
    config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
    option = arguments[0].partition("=")[0]
    fault = config["faults"].get(option)
    printed = ""
    if fault is None or fault["kind"] in ("half", "hang", "replace", "noise"):
        printed = Machine(config["capture"], config["state"]).answer(arguments)
    if config.get("lost"):
        printed = without_lost(option, printed, config["lost"], arguments)
    if fault is not None:
        misbehave(fault, printed)
    sys.stdout.write(printed)


if __name__ == "__main__":
    main()
