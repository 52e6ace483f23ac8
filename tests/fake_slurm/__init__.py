"""Slurm's clients as programs that print recorded output: `fake_clients(tmp_path, "22.05")` is their folder.

The recordings in tests/captures/slurm have `#MARK#` where the real clients printed the mark of their command
line; the programs put the mark of theirs in its place. A file `<name>.fail` in the folder makes a client fail
with that text; `calls` logs each command line.
"""

from __future__ import annotations

from pathlib import Path

CAPTURES = Path(__file__).parents[1] / "captures" / "slurm"
VERSIONS = ("22.05", "24.11", "26.05")
MARK = "#MARK#"

_SCRIPT = """#!/bin/sh
folder={folder}
name=$(basename "$0")
echo "$name $*" >> "$folder/calls"
for last; do :; done
mark=${{last##*:}}
file=$name
case "$name $*" in
  "scontrol ping") file=ping ;;
  "scontrol --version") file=version ;;
  "scontrol show config") file=show_config ;;
  "scontrol show job -d") file=show_job ;;
  "scontrol show reservation -o") file=show_reservation ;;
  "scontrol show licenses -o") file=show_licenses ;;
esac
if [ -e "$folder/$file.fail" ]; then cat "$folder/$file.fail" >&2; exit 1; fi
exec sed "s/#MARK#/$mark/g" "$folder/$file.txt"
"""


def recorded(version: str, name: str) -> str:
    # Read without translation: a job name may hold a carriage return.
    return (CAPTURES / version / f"{name}.txt").read_bytes().decode("utf-8")


def fake_clients(folder: Path, version: str) -> Path:
    """Makes the programs in `folder`; the outputs beside them may be changed by the test."""
    folder.mkdir(exist_ok=True)
    for path in (CAPTURES / version).glob("*.txt"):
        (folder / path.name).write_bytes(path.read_bytes())
    for name in ("scontrol", "squeue", "sinfo", "sdiag", "sshare"):
        program = folder / name
        program.write_text(_SCRIPT.format(folder=folder))
        program.chmod(0o755)
    return folder
