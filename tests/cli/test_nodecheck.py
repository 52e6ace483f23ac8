"""`gpuscope nodecheck`: what drains a node, when it is resumed, and that nobody else's drain is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.cli import main
from gpuscope.cli.nodecheck import NodeDrainer
from gpuscope.errors import GpuscopeError, SourceError
from gpuscope.health.drain_reasons import MAX_REASON, drain_reason, draining, kinds_in
from gpuscope.owners.proc import Proc
from gpuscope.sources.slurm.node_drain import NodeControl, NodeDrain, parse_node
from tests.owners.trees import BOOTED_AT, ProcTree

LOST = {"kind": "gpu_lost", "severity": "critical", "node": "gpu7", "why": "GPU 3 does not answer"}
XID = {"kind": "xid_hardware", "severity": "critical", "node": "gpu7", "why": "GPU 1: XID 48, a hardware fault"}
HOT = {"kind": "hot", "severity": "warning", "node": "gpu7", "why": "GPU 2 is about to slow down"}

SCONTROL = """#!/bin/sh
cd {folder}
echo "$*" >> runs
case "$1 $3" in
"show gpu7") echo "NodeName=gpu7 Arch=x86_64 State=IDLE$(cat state) Gres=gpu:4 $(cat reason)" ;;
"update State=DRAIN") echo "+DRAIN" > state; echo "$4 [root@$(cat now)]" > reason ;;
"update State=UNDRAIN") : > state; : > reason ;;
*) exit 1 ;;
esac
"""


class FakeSlurm:
    """A scontrol that keeps the state of one node in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scontrol").write_text(SCONTROL.format(folder=folder))
        (folder / "scontrol").chmod(0o755)
        self.set()
        (folder / "now").write_text(str(BOOTED_AT + 1000))
        self.proc = ProcTree(folder / "proc")

    def set(self, state: str = "", reason: str = "") -> None:
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

    def keep(self, *findings: dict[str, Any]) -> str:
        control = NodeControl("gpu7", str(self.folder), 10.0)
        return NodeDrainer(control, self.folder / "note", Proc(str(self.folder / "proc"))).keep(findings)

    def reboot(self) -> None:
        (self.folder / "note").unlink()
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
    assert not (slurm.folder / "note").exists()


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
        ("State=IDLE Reason=a [b] c=d [root@1700000500]", NodeDrain(False, "a [b] c=d", "root", 1700000500.0)),
        ("NodeName=n State=MIXED+DRAIN+NOT_RESPONDING", NodeDrain(True)),
        ("State=DOWN*+DRAIN Reason=x [slurm@2026-01-01T00:00:00]", NodeDrain(True, "x", "slurm", None)),
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
