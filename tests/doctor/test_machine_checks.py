"""The doctor's checks on machines with and without problems; the root folder is a test folder."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.base.settings import Settings, load_settings
from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.model.readings import Driver, Snapshot, SourceStatus, Uuid
from gpuscope.serve.doctor import examine, gpus, machine
from gpuscope.serve.doctor import listener_checks as listeners
from gpuscope.vendors.nvidia import doctor as driver
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA, make_instance
from tests.fakes import gpu
from tests.local_server import QuietHandler, serving_http


def context(
    tmp_path: Path, *devices: object, settings: Settings | None = None, **more: object
) -> DoctorContext:
    environment = more.pop("environment", {})
    snapshot = Snapshot(node="n", taken_at=1.0, devices=devices, **more)  # type: ignore[arg-type]
    return DoctorContext(settings or Settings(), snapshot, tmp_path, environment)  # type: ignore[arg-type]


def words(results: Iterable[CheckResult]) -> str:
    return "\n".join(f"{f.verdict.value}: {f.what} -> {f.fix}" for f in results)


def file(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_loaded_module_is_named_with_its_version(tmp_path: Path) -> None:
    text = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12\n"
    )
    file(tmp_path / "proc/driver/nvidia/version", text)
    assert words(driver.kernel_module(context(tmp_path))) == "ok: NVIDIA kernel module 580.95.05 -> "


def test_no_module_and_the_wrong_module(tmp_path: Path) -> None:
    modules = file(tmp_path / "proc/modules", "ext4 1 0 - Live 0x0\n")
    assert "modprobe nvidia" in words(driver.kernel_module(context(tmp_path)))
    modules.write_text("nouveau 1 0 - Live 0x0\n")
    assert "blacklist nouveau" in words(driver.kernel_module(context(tmp_path)))


def test_device_files(tmp_path: Path) -> None:
    assert "/dev/nvidia0 does not exist" in words(driver.device_files(context(tmp_path)))
    for name in ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"):
        file(tmp_path / "dev" / name)
    assert "2 GPU device files" in words(driver.device_files(context(tmp_path)))


def test_one_of_eight_visible(tmp_path: Path) -> None:
    some = context(tmp_path, gpu(0), expected_gpus=8, environment={"NVIDIA_VISIBLE_DEVICES": "0"})
    told = words(gpus.visible_gpus(some))
    assert told.startswith("problem: 1 of 8 GPUs visible (NVIDIA_VISIBLE_DEVICES=0)")
    assert "--gpus all" in told
    assert "8 of 8" in words(gpus.visible_gpus(context(tmp_path, *map(gpu, range(8)), expected_gpus=8)))
    lost = words(gpus.health(context(tmp_path, gpu(3, lost=True))))
    assert lost.startswith("problem: GPU 3 does not answer")
    assert "nvidia-smi -r" not in lost, "a reset does not reach a lost GPU"
    told = words(gpus.visible_gpus(context(tmp_path, expected_gpus=0)))
    assert told.startswith("problem: this machine has no GPU of a known vendor (AMD, Intel, NVIDIA)")
    assert "lspci -d 10de: lists NVIDIA devices" in told
    assert "up --demo" in told


def test_mig_with_and_without_instances(tmp_path: Path) -> None:
    instance = make_instance(uuid=Uuid("MIG-1"), gpu_instance=7, compute_instance=0)
    assert "MIG with 1 instances" in words(
        driver.mig(context(tmp_path, gpu(mig_enabled=1, instances=(instance,))))
    )
    assert "no instance is visible" in words(driver.mig(context(tmp_path, gpu(mig_enabled=1))))
    assert words(driver.mig(context(tmp_path, gpu(mig_enabled=0), gpu(1)))) == ""
    pending = gpu(mig_enabled=1, mig_pending=0, instances=(instance,))
    assert "changes at the next reset" in words(driver.mig(context(tmp_path, pending)))


def test_health_is_what_the_page_finds(tmp_path: Path) -> None:
    ill = gpu(
        row_remap_failed=1, row_remap_pending=1, pcie_link_width=8, pcie_link_width_max=16, persistence_mode=0
    )
    told = words(gpus.health(context(tmp_path, ill)))
    for part in ("RMA", "at the next reset", "8 of 16 lanes", "nvidia-persistenced"):
        assert part in told
    assert words(gpus.health(context(tmp_path, gpu(row_remap_failed=0, pcie_link_width=16)))) == ""
    assert "need DCGM" in words(driver.profiling(context(tmp_path, ill)))
    assert "on every GPU" in words(driver.profiling(context(tmp_path, gpu(engine_active_ratio={"sm": 0.0}))))


def test_the_kernel_log_and_the_clock(tmp_path: Path) -> None:
    assert "CAP_SYSLOG" in words(machine.kernel_log(context(tmp_path)))
    file(tmp_path / "dev/kmsg")
    assert "ok" in words(machine.kernel_log(context(tmp_path)))
    assert "clock is" in words(machine.clock_synchronisation(context(tmp_path)))


@contextmanager
def answering(status: int, text: str) -> Iterator[int]:
    """A server that requires a login for everything except the health checks, like ours."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            open_path = self.path in ("/-/healthy", "/-/ready")
            self.answer(text.encode(), "text/plain", status if open_path else 401)

    with serving_http(Handler, host="0.0.0.0") as port:
        yield port


def port_words(tmp_path: Path, host: str, port: int) -> str:
    settings = load_settings({"listen": f"{host}:{port}"}, {})
    return words(listeners.listen_port(context(tmp_path, settings=settings)))


def test_a_free_port_and_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        thread = threading.Thread(target=lambda: taken.accept()[0].close(), daemon=True)
        thread.start()
        told = port_words(tmp_path, "127.0.0.1", port)
        thread.join()
    assert f"note: port {port} is in use" in told
    assert f"sport = :{port}" in told
    assert port_words(tmp_path, "127.0.0.1", port) == f"ok: port {port} is free -> "


@pytest.mark.parametrize("host", ["0.0.0.0", "", "127.0.0.1"])
def test_a_server_with_login_still_reports_its_readiness(tmp_path: Path, host: str) -> None:
    with answering(200, "gpuscope is ready.") as port:
        assert port_words(tmp_path, host, port) == (f"ok: the gpuscope on port {port} is ready -> ")
    with answering(503, "no fresh GPU data.") as port:
        assert "note" in port_words(tmp_path, host, port)
        assert "not ready: no fresh GPU data." in port_words(tmp_path, host, port)


def test_the_servers_port_is_reported_only_if_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(200, "gpuscope is ready.") as port:
        monkeypatch.setattr(listeners, "SERVER", ("127.0.0.1", port))
        assert f"port {port} is ready" in words(listeners.running_server(context(tmp_path)))
    assert words(listeners.running_server(context(tmp_path))) == ""


def test_a_source_that_is_down_is_reported_with_its_reason(tmp_path: Path) -> None:
    down = SourceStatus(name="nvidia-smi", up=False, why="exit code 9: no devices")
    assert "exit code 9" in words(machine.other_sources(context(tmp_path, sources=(down,))))


def test_a_check_that_fails_itself_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(context: DoctorContext) -> Iterable[CheckResult]:
        raise OSError("no such thing")

    monkeypatch.setattr(driver, "CHECKS", (broken,))
    results = list(examine(context(tmp_path / "nowhere", gpu())))
    assert any("could not check broken" in f.what for f in results)
    assert any("port" in f.what for f in results)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_command_reports_problems_and_exits_1(form: list[str]) -> None:
    argv = [sys.executable, "-m", "gpuscope", "doctor", "--nvidia-smi-command", "/nonexistent/smi", *form]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has GPUs; what the doctor says of it is not known here")
    assert done.returncode == 1
    assert "/dev/nvidia0" in done.stdout
    if form:
        assert {"verdict", "what", "fix"} == set(json.loads(done.stdout)[0])


def test_every_problem_has_a_fix(tmp_path: Path) -> None:
    ill = gpu(0, row_remap_failed=1, mig_enabled=1, lost=False)
    for result in examine(context(tmp_path, ill, gpu(1, lost=True), expected_gpus=8)):
        if result.verdict is Verdict.BAD:
            assert result.fix, result.what


DEMO = Settings(source="demo", listen=("127.0.0.1", 0))


def test_simulated_gpus_need_no_driver(tmp_path: Path) -> None:
    """This machine's root is an empty folder: nothing of a driver is there."""
    simulated = context(tmp_path, gpu(0), settings=DEMO, expected_gpus=1, simulated=True)
    findings = list(examine(simulated))
    assert [f.what for f in findings if f.verdict is Verdict.BAD] == []
    said = words(findings)
    assert "the GPUs are simulated" in said
    assert "1 of 1 GPUs visible" in said
    for word in ("nvidia-ml", "/dev/nvidia0", "kernel module", "dcgmi", "kmsg"):
        assert word not in said
    real = words(examine(context(tmp_path, gpu(0), expected_gpus=1)))
    assert "problem: /dev/nvidia0 does not exist" in real


def test_gpus_that_do_not_answer_are_named(tmp_path: Path) -> None:
    seven = [gpu(index) for index in (5, 0, 1, 2, 4, 6, 7)]
    for devices, driver_reading in (
        ([*seven, gpu(3, lost=True)], Driver()),
        (seven, Driver(gpu_count=8)),  # lost before this program started: the driver gives no handle
    ):
        told = words(
            gpus.visible_gpus(context(tmp_path, *devices, drivers={NVIDIA: driver_reading}, expected_gpus=7))
        )
        assert told.startswith("problem: 7 of 8 GPUs answer; no answer from GPU 3 -> ")
    told = words(
        gpus.visible_gpus(context(tmp_path, *seven, drivers={NVIDIA: Driver(gpu_count=7)}, expected_gpus=7))
    )
    assert told == "ok: 7 of 7 GPUs visible -> "


def test_findings_come_by_gpu_and_their_commands_name_it(tmp_path: Path) -> None:
    errors = {("uncorrected", "volatile"): 2.0}
    devices = [gpu(index, ecc_errors=errors) for index in (10, 2, 9, 0)]
    results = list(gpus.health(context(tmp_path, *devices)))
    assert [result.fix for result in results] == [
        f"drain the node, then nvidia-smi -r -i {index}" for index in (0, 2, 9, 10)
    ]
