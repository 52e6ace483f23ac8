"""`node_infiniband_*` of the family `host` against a real node_exporter over the same sysfs, byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.agent.families import load_family
from gpuscope.agent.sources.infiniband import InfinibandSource
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import Snapshot
from gpuscope.model.source import Tier
from tests.metrics.test_host_node_exporter import blocks, theirs
from tests.sources.infiniband_tree import LEGACY_COUNTERS, SysTree, eight_rails

pytestmark = pytest.mark.engine("node_exporter")


def ours(tree: SysTree) -> str:
    settings = Settings(path_sysfs=str(tree.folder))
    reading = InfinibandSource(settings).read(frozenset(Tier))
    snapshot = Snapshot(node="n", taken_at=0.0, infiniband=reading.infiniband)
    return encode_text(load_family("host").build(settings).to_families(snapshot)).decode()


def test_the_same_ports_have_the_same_bytes(tmp_path: Path) -> None:
    tree = eight_rails(tmp_path)
    tree.add_adapter(
        "hfi1_0",
        "pci0000:b0/0000:b0:01.0/0000:b1:00.0",
        state="1: DOWN",
        phys_state="2: Polling",
        rate="2.5 Gb/sec (1X SDR)",
        counters={"symbol_error": "N/A (no PMA)", "link_downed": "0", "port_rcv_discards": "5"},
        hw_counters={},
    )
    tree.write_all(f"{tree.port('hfi1_0')}/counters_ext", LEGACY_COUNTERS)
    expected = blocks(
        theirs(
            ("--collector.disable-defaults", "--collector.infiniband", f"--path.sysfs={tree.folder}"),
        )
    )
    expected = {name: lines for name, lines in expected.items() if name.startswith("node_infiniband_")}
    mine = blocks(ours(tree))
    assert mine.keys() == expected.keys()
    assert len(mine) > 60
    for name, lines in expected.items():
        assert mine[name] == lines
