"""A stand-in for NVIDIA's container runtime: gives a container the fake driver, then runs runc.

As the original, it changes the container's config.json before runc reads it, and only if the container's
environment asks for devices. Arguments: RUNC DRIVER_FOLDER, then those for runc. Only the standard library:
containerd runs it with the machine's Python.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_FOLDER = "/usr/lib/x86_64-linux-gnu"
STATE_FOLDER = "/run/fake-driver"
NO_DEVICES = ("", "void", "none")


def add_driver(config: dict[str, Any], driver: Path) -> None:
    environment = config["process"].setdefault("env", [])
    values = dict(word.split("=", 1) for word in environment if "=" in word)
    if values.get("NVIDIA_VISIBLE_DEVICES", "") in NO_DEVICES:
        return
    environment.append(f"FAKE_NVML_STATE={STATE_FOLDER}/state")
    for source, destination in ((driver / LIBRARY, f"{LIBRARY_FOLDER}/{LIBRARY}"), (driver, STATE_FOLDER)):
        mount = {"destination": destination, "type": "bind", "source": str(source), "options": ["rbind", "ro"]}
        config["mounts"].append(mount)


def main() -> None:
    runc, driver, *arguments = sys.argv[1:]
    if "create" in arguments:
        path = Path(arguments[arguments.index("--bundle") + 1]) / "config.json"
        config = json.loads(path.read_text())
        add_driver(config, Path(driver))
        path.write_text(json.dumps(config))
    os.execv(runc, [runc, *arguments])


if __name__ == "__main__":
    main()
