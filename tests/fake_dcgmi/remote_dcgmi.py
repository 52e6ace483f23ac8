#!/usr/bin/python3
"""A `dcgmi` without an engine inside: it sends its arguments to the stand-in host engine and prints the answer.

The protocol is not DCGM's. What it shares with the original: `--host`, TCP, exit codes and sentences when the
engine is not there. Copied alone into containers: only the standard library.
"""

from __future__ import annotations

import json
import os
import socket
import sys

DEFAULT_HOST = "localhost:5555"
NOT_CONNECTED = 235
DISCONNECTED = "Host engine connection invalid/disconnected"


def main() -> int:
    arguments = sys.argv[1:]
    host = DEFAULT_HOST
    if "--host" in arguments:
        at = arguments.index("--host")
        host = arguments[at + 1]
        del arguments[at : at + 2]
    address, _, port = host.rpartition(":")
    try:
        connection = socket.create_connection((address, int(port)), timeout=5)
    except OSError:
        print(f"Error: unable to establish a connection to the specified host: {address}")
        print(f"Error: Unable to connect to host engine. {DISCONNECTED}.")
        return NOT_CONNECTED
    connection.settimeout(None)
    with connection, connection.makefile("rwb") as stream:
        stream.write(json.dumps(arguments).encode() + b"\n")
        stream.flush()
        for line in stream:
            kind, content = line[:1], line[1:]
            if kind == b"x":
                return int(content)
            out = sys.stdout if kind == b"o" else sys.stderr
            out.buffer.write(content)
            out.buffer.flush()
    sys.stderr.write(f"Error getting values information. Return -21: {DISCONNECTED}\n")
    return NOT_CONNECTED


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(141)
