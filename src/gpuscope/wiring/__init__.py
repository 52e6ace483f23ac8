"""The only place that builds objects and starts threads: `agent` for what collects, `server` for what keeps."""

from gpuscope.wiring.agent import (
    Running,
    build_collector,
    build_exporter,
    read_once,
    require_gpu,
    serve_agent,
    write_textfile,
)

__all__ = [
    "Running",
    "build_collector",
    "build_exporter",
    "read_once",
    "require_gpu",
    "serve_agent",
    "write_textfile",
]
