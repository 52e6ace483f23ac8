"""The counters files of /etc/dcgm-exporter, written from gpuscope's own lists.

The image for dcgm-exporter's role has them: `-f /etc/dcgm-exporter/dcp-metrics-included.csv`, and scripts that
copy or edit these files, keep working.
"""

from __future__ import annotations

from typing import Final

from gpuscope.serve.render import RenderedFile
from gpuscope.vendors.nvidia.families.dcgm.table import (
    OLD_OPT_IN_COUNTERS,
    OPT_IN_COUNTERS,
    SHIPPED_FILES,
    Counter,
)

HEADER: Final = """# Format: name, Prometheus type, help. Lines that start with # are comments.
# A row of type `label` becomes a label of all other metrics.

"""
OPT_IN_HEADER: Final = "\n# Further fields: remove the # to export them.\n"


def counters_files() -> list[RenderedFile]:
    return [RenderedFile(name, _text(name, counters)) for name, counters in SHIPPED_FILES.items()]


def _text(name: str, counters: tuple[Counter, ...]) -> str:
    opt_in = OLD_OPT_IN_COUNTERS if name.startswith("1.x") else OPT_IN_COUNTERS
    rows = "".join(_row(counter) + "\n" for counter in counters)
    comments = "".join(f"# {_row(counter)}\n" for counter in opt_in)
    return HEADER + rows + OPT_IN_HEADER + comments


def _row(counter: Counter) -> str:
    help_text = counter.help
    if "," in help_text or '"' in help_text:
        help_text = '"' + help_text.replace('"', '""') + '"'
        return f"{counter.name},{counter.type},{help_text}"
    return f"{counter.name}, {counter.type}, {help_text}"
