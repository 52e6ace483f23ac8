"""`gpuscope nodecheck`: what drains a node, when it is resumed, and that nobody else's drain is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.owners.proc import Proc
from gpuscope.agent.sources.slurm.node_drain import NodeControl, NodeDrain, parse_node
from gpuscope.base.errors import GpuscopeError, SourceError
from gpuscope.cli import main
from gpuscope.cli.nodecheck import NodeDrainer, count_units
from gpuscope.judge.checks.drain_reasons import MAX_REASON, drain_reason, draining, kinds_in
from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.owners.trees import BOOTED_AT, ProcTree

__all__ = ["driver"]

LOST = {"kind": "gpu_lost", "severity": "critical", "node": "gpu7", "why": "GPU 3 does not answer"}
XID = {"kind": "xid_hardware", "severity": "critical", "node": "gpu7", "why": "GPU 1: XID 48, a hardware fault"}
HOT = {"kind": "hot", "severity": "warning", "node": "gpu7", "why": "GPU 2 is about to slow down"}

SCONTROL = """#!/bin/sh
cd {folder}
echo "$*" >> runs
case "$1 $3" in
"show gpu7") echo "NodeName=gpu7 Arch=x86_64 State=IDLE$(cat state) Gres=$(cat gres) $(cat reason)" ;;
"update State=DRAIN") echo "+DRAIN" > state; echo "$4 [root@$(cat now)]" > reason ;;
"update State=UNDRAIN") : > state; : > reason ;;
*) exit 1 ;;
esac
"""


class FakeSlurm:
    """A scontrol that keeps the state of one node in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uptime = 1000.0
        (folder / "scontrol").write_text(SCONTROL.format(folder=folder))
        (folder / "scontrol").chmod(0o755)
        self.set()
        (folder / "now").write_text(str(BOOTED_AT + 1000))
        self.proc = ProcTree(folder / "proc")

    def set(self, state: str = "", reason: str = "", gres: str = "gpu:a100:4(S:0-1)") -> None:
        (self.folder / "gres").write_text(gres)
        (self.folder / "state").write_text(state)
        (self.folder / "reason").write_text(reason)

    @property
    def reason(self) -> str:
        return (self.folder / "reason").read_text().strip()

    def commands(self) -> list[str]:
        path = self.folder / "runs"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def drainer(self, *, has_library: bool = True) -> NodeDrainer:
        """A new one, as for each run of the health check."""
        control, proc = NodeControl("gpu7", str(self.folder), 10.0), Proc(str(self.folder / "proc"))
        return NodeDrainer(
            control, "gpu7", self.folder, proc, uptime=lambda: self.uptime, has_library=lambda: has_library
        )

    def keep(self, *findings: dict[str, Any]) -> str:
        return self.drainer().keep(findings)

    def check(self, answering: int, *, has_library: bool = True) -> str:
        """What a health check does about the number of GPUs that answer."""
        drainer = self.drainer(has_library=has_library)
        return drainer.keep(drainer.missing_gpus(answering))

    def reboot(self) -> None:
        (self.folder / "drain-gpu7").unlink()
        (self.folder / "proc/stat").write_text(f"btime {BOOTED_AT + 5000}\n")


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


def test_it_drains_once_and_resumes_once(slurm: FakeSlurm) -> None:
    assert slurm.keep(LOST) == "drained: gpuscope gpu_lost: GPU 3 does not answer"
    assert slurm.reason.startswith("Reason=gpuscope gpu_lost: GPU 3 does not answer [root@")
    slurm.commands()
    assert slurm.keep(LOST) == ""
    assert slurm.commands() == [], "nothing changed: slurmctld is not asked"
    assert slurm.keep() == "resumed; it was drained: gpuscope gpu_lost: GPU 3 does not answer"
    assert slurm.reason == ""
    slurm.commands()
    assert slurm.keep() == ""
    assert slurm.commands() == []


def test_a_second_kind_of_trouble_is_added_to_the_reason(slurm: FakeSlurm) -> None:
    slurm.keep(LOST)
    done = slurm.keep(LOST, XID)
    assert done == "drained: gpuscope gpu_lost,xid_hardware: GPU 3 does not answer (1 more)"


def test_another_persons_drain_is_left_alone(slurm: FakeSlurm) -> None:
    slurm.set("+DRAIN", "Reason=new fan [root@1700000500]")
    assert slurm.keep(LOST) == "left alone, drained by root: new fan"
    assert slurm.keep() == ""
    assert slurm.reason == "Reason=new fan [root@1700000500]"


def test_an_administrators_resume_is_respected(slurm: FakeSlurm) -> None:
    slurm.keep(LOST)
    slurm.set()
    assert slurm.keep(LOST) == ""
    assert slurm.reason == ""
    assert slurm.keep() == ""
    assert slurm.keep(LOST).startswith("drained"), "trouble that is over and returns is new trouble"


def test_after_an_xid_only_a_reboot_resumes(slurm: FakeSlurm) -> None:
    slurm.keep(XID)
    assert slurm.keep().startswith("stays drained until it is rebooted: gpuscope xid_hardware")
    assert slurm.keep() == "", "it is said once"
    assert "gpuscope" in slurm.reason
    slurm.reboot()
    assert slurm.keep().startswith("resumed; it was drained: gpuscope xid_hardware")


def test_slurm_that_does_not_answer_changes_nothing(slurm: FakeSlurm) -> None:
    (slurm.folder / "scontrol").write_text("#!/bin/sh\necho no controller >&2\nexit 1\n")
    with pytest.raises(GpuscopeError, match=r"stays as it is in Slurm: .*no controller"):
        slurm.keep(LOST)
    assert not (slurm.folder / "drain-gpu7").exists()


MISSING = "drained: gpuscope gpus_missing: 0 of 4 GPUs that Slurm has here answer"


def test_a_driver_that_hangs_drains_the_node_after_some_seconds(slurm: FakeSlurm) -> None:
    assert slurm.check(4) == ""
    for uptime in (1100, 1110):
        slurm.uptime = uptime
        assert slurm.check(0) == "", "a driver that is loaded again takes seconds"
    slurm.uptime = 1115
    assert slurm.check(0) == MISSING
    assert slurm.check(0) == ""
    assert slurm.check(4).startswith("resumed; it was drained: gpuscope gpus_missing")


def test_a_driver_that_was_never_there_drains_the_node(slurm: FakeSlurm) -> None:
    """Slurm's own number of GPUs is the only one known: no agent has ever seen one here."""
    assert slurm.check(0) == ""
    slurm.uptime += 60
    assert slurm.check(0) == MISSING


def test_a_node_without_nvidias_library_is_not_drained(slurm: FakeSlurm) -> None:
    """Its GPUs are another vendor's."""
    for _ in range(3):
        assert slurm.check(0, has_library=False) == ""
        slurm.uptime += 60


@pytest.mark.parametrize(("gres", "drained"), [("gpu:4", True), ("gpu:2", False), ("(null)", False)])
def test_one_gpu_of_three_that_were_here(slurm: FakeSlurm, gres: str, drained: bool) -> None:
    """Slurm may have been told of more GPUs than there are, or of fewer."""
    slurm.set(gres=gres)
    for answering in (3, 3, 2, 2):
        done = slurm.check(answering)
        slurm.uptime += 60
    assert ("2 of 3 GPUs" in done) == drained


def test_a_node_whose_gpus_were_taken_out_of_slurm_conf_is_not_drained(slurm: FakeSlurm) -> None:
    slurm.check(4)
    slurm.set(gres="gpu:2")
    for _ in range(4):
        slurm.uptime += 60
        assert slurm.check(2) == ""


def test_the_count_is_asked_once(slurm: FakeSlurm) -> None:
    slurm.check(4)
    slurm.commands()
    slurm.check(4)
    assert slurm.commands() == []


def test_units_are_counted_as_slurm_counts_them() -> None:
    """A board that is split counts by its instances; what does not answer does not count."""
    gpus = [
        {"node": "gpu7", "uuid": "a", "state": "idle"},
        {"node": "gpu7", "uuid": "b", "state": "busy"},
        {"node": "gpu7", "uuid": "b1", "parent": "b", "state": "idle"},
        {"node": "gpu7", "uuid": "b2", "parent": "b", "state": "idle"},
        {"node": "gpu7", "uuid": "c", "state": "lost"},
        {"node": "gpu8", "uuid": "d", "state": "idle"},
        {"node": "gpu7", "uuid": "e", "state": "stale"},
    ]
    assert count_units({"gpus": gpus}, "gpu7") == 3
    for why in ("processes_unknown", "allocation_unknown"):
        answers = {"node": "gpu7", "uuid": "f", "state": "stale", "why": why}
        assert count_units({"gpus": [*gpus, answers]}, "gpu7") == 4


@pytest.mark.parametrize("trouble", ["hangs", "is unloaded"])
def test_the_command_drains_a_node_whose_driver_does_not_answer(
    slurm: FakeSlurm, driver: FakeDriver, trouble: str
) -> None:
    """The program itself, which reads the driver because no agent runs here."""
    if trouble == "hangs":
        driver.hang("*")
    else:
        driver.unload()
    (slurm.folder / "gpus-gpu7").write_text("4 0 0")  # missing since the boot, and none has been seen
    command = [sys.executable, "-m", "gpuscope", "nodecheck", "--drain", "--direct", "--source", "nvml"]
    names = ["--node", "gpu7", "--slurm-node", "gpu7", "--slurm-bin-dir", str(slurm.folder)]
    done = subprocess.run(
        [*command, *names, "--drain-state-dir", str(slurm.folder)],
        capture_output=True, text=True, timeout=120, env={**os.environ, **driver.env},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert f"node gpu7: {MISSING}" in done.stdout
    assert slurm.reason.startswith("Reason=gpuscope gpus_missing")


def test_only_critical_findings_of_this_node_drain() -> None:
    elsewhere = {**LOST, "node": "gpu8"}
    assert draining([HOT, elsewhere, LOST], "gpu7") == [LOST]
    assert drain_reason([]) == ""


@given(st.text(), st.text())
def test_a_reason_is_one_plain_line_and_is_known_again(kind: str, why: str) -> None:
    reason = drain_reason([{**LOST, "why": why}, {"kind": kind, "why": why}])
    assert len(reason) <= MAX_REASON
    assert reason.isascii()
    assert reason.isprintable()
    assert not set("[]\"'\\") & set(reason)
    assert "gpu_lost" in kinds_in(reason) or len(kind) > 100
    assert kinds_in(f"x {reason}") == frozenset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("State=IDLE Reason=a [b] c [root@1700000500]", NodeDrain(False, 0, "a [b] c", "root", 1700000500.0)),
        ("NodeName=n Gres=gpu:h100:2,gpu:1g.10gb:7,shard:8 State=MIXED+DRAIN", NodeDrain(True, 9)),
        ("Gres=(null) State=DOWN*+DRAIN Reason=x [slurm@2026-01-01T00:00]", NodeDrain(True, 0, "x", "slurm")),
    ],
)  # fmt: skip
def test_scontrols_node_is_read(text: str, expected: NodeDrain) -> None:
    assert parse_node(text) == expected
    with pytest.raises(SourceError):
        parse_node("Node n not found")


@pytest.mark.parametrize(("scenario", "code", "printed"), [
    ("lost-gpu", 1, "GPU 5 does not answer; drain the node"),
    ("none", 0, "no critical findings"),
])  # fmt: skip
def test_it_only_reports(capsys: pytest.CaptureFixture[str], scenario: str, code: int, printed: str) -> None:
    assert main(["nodecheck", "--source", "demo", "--scenario", scenario]) == code
    assert printed in capsys.readouterr().out
