#!/usr/bin/python3
"""A stand-in for `nv-hostengine`: runs the fake dcgmi of this folder for each connection of `remote_dcgmi`.

It takes the arguments that the chart gives to the original. FAKE_DCGMI names the file with the machine's
values; a copy is used, because the fake writes beside it and its folder may be read-only. The first line
printed has the capabilities of this process, which a test of the chart reads.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

FAKE = Path(os.environ.get("FAKE_DCGMI_PROGRAM", Path(__file__).with_name("dcgmi.py")))


class Client(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        arguments = json.loads(self.rfile.readline())
        with tempfile.TemporaryDirectory() as folder:
            state = shutil.copy(os.environ["FAKE_DCGMI"], folder)
            process = subprocess.Popen(
                [sys.executable, str(FAKE), *arguments], env={**os.environ, "FAKE_DCGMI": str(state)},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            sending = threading.Lock()

            def forward(pipe: IO[bytes] | None, kind: bytes) -> None:
                for line in pipe or ():
                    with sending:
                        self.wfile.write(kind + line)

            errors = threading.Thread(target=forward, args=(process.stderr, b"e"), daemon=True)
            errors.start()
            try:
                forward(process.stdout, b"o")
                errors.join()
                self.wfile.write(b"x%d\n" % process.wait())
            except OSError:  # the client ended
                process.kill()
                process.wait()


class Engine(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-n", action="store_true", required=True, help="stay in the foreground")
    parser.add_argument("-b", dest="address", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    status = Path("/proc/self/status").read_text()
    print(next(line for line in status.splitlines() if line.startswith("CapEff:")), flush=True)
    with Engine((options.address, options.port), Client) as engine:
        engine.serve_forever()


if __name__ == "__main__":
    main()
