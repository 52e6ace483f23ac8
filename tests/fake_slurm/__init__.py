"""Slurm's clients as programs that print recorded output: `fake_clients(tmp_path, "22.05")` is their folder.

A file `<name>.fail` in the folder makes a client fail with that text; `calls` logs each command line. For one
job scontrol prints the paragraph that begins with it.
"""

from __future__ import annotations

from pathlib import Path

CAPTURES = Path(__file__).parents[1] / "captures" / "slurm"
VERSIONS = ("22.05", "24.11", "26.05")

PROGRAMS = ("scontrol", "squeue", "sinfo", "sdiag", "sshare", "sacctmgr")

_SCRIPT = """#!/bin/sh
folder={folder}
name=$(basename "$0")
echo "$name $*" >> "$folder/calls"
file=$name
case "$name $*" in
  "scontrol ping") file=ping ;;
  "scontrol --version") file=version ;;
  "scontrol show config") file=show_config ;;
  "scontrol show job -a -d"*) file=show_job ;;
  "scontrol show reservation -o") file=show_reservation ;;
  "scontrol show licenses -o") file=show_licenses ;;
esac
if [ -e "$folder/$file.fail" ]; then cat "$folder/$file.fail" >&2; exit 1; fi
if [ "$file/$#" = show_job/5 ]; then exec awk -v RS= -v "job=JobId=$5" '$1 == job' "$folder/$file.txt"; fi
exec cat "$folder/$file.txt"
"""


def recorded_bytes(version: str, name: str) -> bytes:
    return (CAPTURES / version / f"{name}.txt").read_bytes()


def recorded(version: str, name: str) -> str:
    # Read without translation: a job name may hold a carriage return.
    return recorded_bytes(version, name).decode("utf-8")


def fake_clients(folder: Path, version: str) -> Path:
    """Makes the programs in `folder`; the outputs beside them may be changed by the test."""
    folder.mkdir(exist_ok=True)
    for path in (CAPTURES / version).glob("*.txt"):
        (folder / path.name).write_bytes(path.read_bytes())
    for name in PROGRAMS:
        program = folder / name
        program.write_text(_SCRIPT.format(folder=folder))
        program.chmod(0o755)
    (folder / "sacctmgr.fail").write_text("sacctmgr: error: slurmdbd: connection refused\n")
    return folder
