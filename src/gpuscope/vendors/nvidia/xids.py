"""NVIDIA's XID errors: what each number means, whose fault it usually is, and what to do.

Input: an XID number; output: a row. A number that is not in NVIDIA's public catalogue gets a row too, which
says so. The one thing a newcomer would get wrong: many XIDs (13, 31, 43, 45, …) are a program's mistake on a
healthy GPU, and draining the node for them is wrong. XID 154 and NVML's recovery action are the driver's own
verdict and outrank this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from gpuscope.model.vendor import ErrorAction, ErrorCatalogue, ErrorCheck, GpuError


class XidClass(StrEnum):
    """Which part of the machine an XID is about; decides severity and who acts."""

    APPLICATION = "application"
    MEMORY = "memory"
    CONTAINED = "contained"
    BUS = "bus"
    NVLINK = "nvlink"
    DRIVER = "driver"
    FIRMWARE = "firmware"
    POWER = "power"
    HARDWARE = "hardware"
    VERDICT = "verdict"
    RECORD = "record"
    TEST = "test"
    UNKNOWN = "unknown"


_DAMAGED_DATA_XIDS: Final = frozenset({32, 80})
"""Their cause is often the bus, but they hit one program."""
CONTAINED_MEMORY_XIDS: Final = frozenset({94})
"""One program is hit, and the GPU needs a reset at some time."""
HARDWARE_XIDS: Final = frozenset({48, 54, 64, 79, 95, 140, 142, 143, 156, 167, 171, 172})
NVLINK_XIDS: Final = frozenset({74, 136, 144, 145, 146, 149, 150, 155})
"""Not 147 and 148: NVIDIA says to ignore them."""
DRIVER_XIDS: Final = frozenset({8, 46, 60, 62, 109, 110, 119, 120, 158, 169})
"""Not 38, 66 and 67: NVIDIA says to ignore them at first."""

_ECC = "gpuscope_gpu_ecc_errors_total"
_REMAP = "gpuscope_gpu_row_remap_pending"
_REMAP_FAILED = "gpuscope_gpu_row_remap_failed"
_SRAM = "gpuscope_gpu_ecc_sram_threshold_exceeded"
_REPLAYS = "gpuscope_gpu_pcie_replays_total"
_WIDTH = "gpuscope_gpu_pcie_link_width"
_NVLINK_UP = "gpuscope_gpu_nvlink_up"
_NVLINK_ERRORS = "gpuscope_gpu_nvlink_errors_total"
_POWER = "gpuscope_gpu_power_watts"
_CLOCK = "gpuscope_gpu_clock_hertz"
_BUSY = "gpuscope_gpu_utilization_ratio"
_FABRIC = "gpuscope_gpu_fabric_state"
_RECOVERY = "gpuscope_gpu_recovery_action"

_RESTART = "restart the program; if it returns with other programs on this GPU, report it to NVIDIA"
_ONCE = "nothing the first time; if it returns, collect nvidia-bug-report.sh and contact support"
_RESET = "drain the node, then reset the GPU (nvidia-smi -r); if it returns, replace the card"


def _xid(
    code: int,
    name: str,
    xid_class: XidClass,
    action: ErrorAction,
    meaning: str,
    usual_cause: str,
    next_step: str,
    related: tuple[str, ...] = (),
) -> GpuError:
    return GpuError(
        code=str(code),
        name=name,
        error_class=str(xid_class),
        action=action,
        meaning=meaning,
        usual_cause=usual_cause,
        next_step=next_step,
        related=related,
        is_application=xid_class is XidClass.APPLICATION or code in _DAMAGED_DATA_XIDS,
        is_contained=xid_class is XidClass.CONTAINED,
    )


def _rows(codes: tuple[int, ...], name: str, *rest: object) -> tuple[GpuError, ...]:
    return tuple(_xid(code, f"{name}{number}", *rest) for number, code in enumerate(codes))  # type: ignore[arg-type]


_A, _C = ErrorAction, XidClass
_TABLE: Final[tuple[GpuError, ...]] = (
    _xid(8, "FIFO_IDLE_TIMEOUT", _C.DRIVER, _A.RESTART_APPLICATION,
        "The GPU stopped working on a channel.", "driver or program",
        _RESTART, (_BUSY, _CLOCK)),
    _xid(11, "GR_MISSING_HW", _C.APPLICATION, _A.RESTART_APPLICATION,
        "A program sent a bad command stream.", "program", _RESTART),
    _xid(13, "GR_EXCEPTION", _C.APPLICATION, _A.RESTART_APPLICATION,
        "A kernel went out of bounds or ran an illegal instruction.", "program",
        "run the program under compute-sanitizer; if the same GPC and TPC fail again, run dcgmi diag -r 3",
        ("xid 31", "xid 43")),
    _xid(14, "FAKE_ERROR", _C.TEST, _A.NONE, "An injected test error.", "a test", "nothing"),
    _xid(25, "ILLEGAL_NOTIFY", _C.APPLICATION, _A.RESTART_APPLICATION,
        "A program sent a bad command stream.", "program", _RESTART),
    _xid(31, "MMU_ERR_FLT", _C.APPLICATION, _A.RESTART_APPLICATION,
        "A kernel used an illegal GPU address.", "program",
        "tell the job's owner; run dcgmi diag -r 3 if one GPU repeats it; several GPUs at once are software",
        ("xid 13", "xid 94")),
    _xid(32, "PBDMA_ERROR", _C.BUS, _A.RESTART_APPLICATION,
        "A push buffer arrived corrupted.", "PCIe signal quality, sometimes the program",
        "restart the program and watch PCIe replays; reseat the card if they rise", (_REPLAYS, _WIDTH)),
    _xid(37, "FECS_UNIMPLEMENTED", _C.DRIVER, _A.NONE,
        "The context-switch firmware met a method it does not know.", "driver", _ONCE, ("xid 44", "xid 109")),
    _xid(38, "FECS_WATCHDOG", _C.DRIVER, _A.NONE,
        "The context-switch firmware did not answer in time.", "driver", _ONCE, ("xid 44", "xid 109")),
    *_rows((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "COPY_ENGINE_", _C.DRIVER,
           _A.RESTART_APPLICATION, "A copy engine raised an exception.", "program or driver", _RESTART,
           ("xid 31",)),
    _xid(43, "RESET_CHANNEL", _C.APPLICATION, _A.RESTART_APPLICATION,
        "A program met a software fault and was stopped; the GPU is healthy.", "program",
        "tell the job's owner; nothing is wrong with the GPU", ("xid 13", "xid 31")),
    _xid(44, "FAULT_DURING_CONTEXT_SWITCH", _C.DRIVER, _A.NONE,
        "A fault during a context switch.", "driver", _ONCE, ("xid 109",)),
    _xid(45, "PREEMPTIVE_REMOVAL", _C.APPLICATION, _A.NONE,
        "A process was removed from the GPU: killed, or ended by another XID. Thousands per job are normal.",
        "follows another event",
        "look at the XID before it; alone and unexplained, restart the fabric manager"),
    _xid(46, "GPU_TIMEOUT", _C.DRIVER, _A.RESET_GPU,
        "The GPU stopped processing.", "driver or hardware", _RESET, ("xid 62", "xid 79")),
    _xid(48, "GPU_ECC_DBE", _C.MEMORY, _A.RESET_GPU,
        "An uncorrectable memory error; results computed on this GPU are suspect.", "memory of the card",
        "drain the node and reset the GPU; XID 171 after it means DRAM, 172 SRAM (replace at its threshold)",
        (_ECC, _REMAP, _SRAM)),
    _xid(54, "AUX_POWER_MISSING", _C.POWER, _A.CHECK_HARDWARE,
        "The auxiliary power cable is not connected.", "power connector",
        "check the power connectors", (_POWER,)),
    _xid(60, "SEC2_ERROR", _C.DRIVER, _A.RESTART_APPLICATION,
        "The security or video processor failed.", "driver", _RESTART),
    _xid(61, "PMU_BREAKPOINT", _C.FIRMWARE, _A.REBOOT_NODE,
        "The power controller hit a breakpoint (cards before Ampere only).", "firmware",
        "reboot the node", ("xid 62",)),
    _xid(62, "PMU_HALT", _C.FIRMWARE, _A.RESET_GPU,
        "The power controller halted.", "firmware or hardware", _RESET, (_POWER, _CLOCK)),
    _xid(63, "DRAM_RETIREMENT_EVENT", _C.RECORD, _A.NONE,
        "A memory row was remapped or a page retired, as designed.", "memory of the card",
        "nothing now; reset the GPU at the next maintenance to activate the spare row", (_REMAP,)),
    _xid(64, "DRAM_RETIREMENT_FAILURE", _C.MEMORY, _A.RESET_GPU,
        "A memory row could not be remapped.", "memory of the card",
        "drain the node and reset the GPU; if it returns, replace the card", (_REMAP_FAILED,)),
    _xid(66, "FECS_REGISTER_ACCESS", _C.DRIVER, _A.NONE,
        "The driver made an illegal register access.", "driver", _ONCE),
    _xid(67, "FECS_VERIFICATION", _C.DRIVER, _A.NONE,
        "The driver violated a verification rule.", "driver", _ONCE),
    *_rows((68, 83, 84, 88, 89, 96, 97, 98), "VIDEO_DECODER_", _C.APPLICATION, _A.RESTART_APPLICATION,
           "A video decoder raised an exception.", "program, often a damaged stream", _RESTART),
    _xid(69, "GR_CLASS_ERROR", _C.APPLICATION, _A.RESTART_APPLICATION,
        "A program used a graphics class wrongly.", "program",
        "restart the program; check that its CUDA version fits the driver", ("xid 13",)),
    _xid(74, "NVLINK_ERROR", _C.NVLINK, _A.RESET_GPU,
        "An NVLink failed, or the GPU at its other end did (Ampere, Hopper).", "link, bridge or peer GPU",
        "look at the peer's XIDs and NVLink counters; reset both GPUs or reboot; if it stays, call the vendor",
        (_NVLINK_UP, _NVLINK_ERRORS)),
    _xid(78, "VGPU_START", _C.DRIVER, _A.UPDATE_SOFTWARE,
        "A virtual GPU did not start: guest and host driver do not match.", "driver versions",
        "install matching drivers in guest and host"),
    _xid(79, "FALLEN_OFF_THE_BUS", _C.BUS, _A.REBOOT_NODE,
        "The GPU does not answer on PCIe any more.", "power, heat, riser or the card",
        "drain the node and power-cycle it (a reset cannot reach the GPU); if it returns, reseat or replace",
        (_REPLAYS, "gpuscope_gpu_temperature_celsius", _POWER)),
    _xid(80, "PUSHBUFFER_CRC", _C.BUS, _A.RESTART_APPLICATION,
        "Commands were corrupted on the way to the GPU.", "PCIe signal quality, sometimes the program",
        "restart the program and watch PCIe replays", (_REPLAYS,)),
    *_rows((82, *range(99, 106)), "JPEG_ENGINE_", _C.APPLICATION, _A.RESTART_APPLICATION,
           "A JPEG engine raised an exception.", "program, often a damaged picture", _RESTART),
    *_rows((86, 139), "OPTICAL_FLOW_", _C.APPLICATION, _A.RESTART_APPLICATION,
           "The optical-flow engine raised an exception.", "program", _RESTART),
    _xid(92, "EXCESSIVE_SBE", _C.RECORD, _A.NONE,
        "Many corrected memory errors.", "memory of the card", "watch the card; no action is needed", (_ECC,)),
    _xid(93, "INFOROM_ERASE_LIMIT", _C.RECORD, _A.NONE,
        "The card's configuration memory is not written again, to save its life.", "by design", "nothing"),
    _xid(94, "CONTAINED_ECC", _C.CONTAINED, _A.RESTART_APPLICATION,
        "An uncorrectable memory error was contained: it hit one program only.", "memory of the card",
        "restart that program; reset the GPU at the next maintenance", ("xid 48", "xid 63", "xid 45")),
    _xid(95, "UNCONTAINED_ECC", _C.MEMORY, _A.RESET_GPU,
        "An uncorrectable memory error hit several programs.", "memory of the card",
        "drain the node and reset the GPU before new work (A100 without MIG: reboot)", ("xid 48", "xid 63")),
    *_rows((106, 107), "SMBPBI_TEST_", _C.TEST, _A.NONE, "A test message.", "a test", "nothing"),
    _xid(109, "CONTEXT_SWITCH_TIMEOUT", _C.DRIVER, _A.RESET_GPU,
        "A kernel kept the GPU from switching contexts.", "often the program: a kernel that does not end",
        "end the program, drain the node and reset the GPU; if it returns, contact support",
        (_BUSY, "xid 119")),
    _xid(110, "SECURITY_FAULT", _C.HARDWARE, _A.RESET_GPU,
        "A security fault; rare unless hardware is broken.", "hardware, or a change of it",
        "drain the node and reset the GPU; if it stays, undo the last hardware change and power-cycle"),
    _xid(119, "GSP_RPC_TIMEOUT", _C.FIRMWARE, _A.RESET_GPU,
        "The GPU's system processor does not answer the driver.", "firmware",
        "drain and reset the GPU, else power-cycle the node; update the driver if it returns",
        ("gpuscope_source_duration_seconds",)),
    _xid(120, "GSP_ERROR", _C.FIRMWARE, _A.RESET_GPU,
        "The GPU's system processor failed.", "firmware",
        "drain and reset the GPU, else power-cycle the node; update the driver if it returns",
        ("gpuscope_source_duration_seconds",)),
    _xid(121, "C2C_ERROR", _C.NVLINK, _A.NONE,
        "Corrected errors on the link between CPU and GPU.", "link", "reboot at the next maintenance"),
    _xid(136, "ALI_TRAINING_FAIL", _C.NVLINK, _A.RESET_GPU,
        "An NVLink did not train (Hopper).", "signal integrity", _RESET, (_NVLINK_UP,)),
    _xid(137, "NVLINK_PRIVILEGE_ERROR", _C.APPLICATION, _A.RESTART_APPLICATION,
        "A kernel used an illegal address of a peer GPU.", "program",
        "tell the job's owner; the GPU is healthy", ("xid 31",)),
    _xid(140, "ECC_ESCAPE", _C.MEMORY, _A.RESET_GPU,
        "A memory error was not recovered.", "memory of the card", _RESET, (_ECC,)),
    _xid(141, "FAST_PATH", _C.DRIVER, _A.NONE, "A fast path failed.", "driver", _ONCE),
    _xid(142, "NVENC3", _C.HARDWARE, _A.CONTACT_SUPPORT, "A video encoder failed.", "driver or hardware",
        "collect nvidia-bug-report.sh and contact support"),
    _xid(143, "GPU_INIT_ERROR", _C.HARDWARE, _A.RESET_GPU,
        "The GPU did not start.", "hardware or firmware",
        "drain the node and reset the GPU, else reboot the node; if it returns, contact support",
        ("gpuscope_gpus_seen",)),
    *(_xid(code, f"NVLINK5_{unit}", _C.NVLINK, _A.RESET_GPU,
          "An NVLink unit reported an error (Blackwell); the kernel's line says fatal or not, and which link.",
          "link or peer GPU",
          "nonfatal: watch; fatal: drain the node and reset the GPU; look at the peer first for 149",
          (_NVLINK_UP, _NVLINK_ERRORS, _FABRIC))
      for code, unit in ((144, "SAW"), (145, "RLW"), (146, "TLW"), (149, "NETIR"), (150, "MSE"))),
    *(_xid(code, f"NVLINK5_{unit}", _C.NVLINK, _A.NONE,
          "An NVLink unit reported an error that does not matter on its own (Blackwell).", "link or peer GPU",
          _ONCE, (_NVLINK_UP, _NVLINK_ERRORS))
      for code, unit in ((147, "TREX"), (148, "NVLPW"))),
    _xid(151, "KEY_ROTATION", _C.DRIVER, _A.REBOOT_NODE,
        "Key rotation failed (confidential computing).", "driver", "restart the virtual machine"),
    *_rows((152, 153), "DLA_", _C.RECORD, _A.NONE,
           "An accelerator that data-centre cards lack.", "not known", "nothing"),
    _xid(154, "RECOVERY_ACTION_CHANGED", _C.VERDICT, _A.FOLLOW_VERDICT,
        "The driver says which recovery this GPU needs.", "follows another XID",
        "do what the new recovery action says", (_RECOVERY,)),
    _xid(155, "NVLINK_SOFTWARE_DEFINED", _C.NVLINK, _A.RESET_GPU,
        "An NVLink was taken down on purpose.", "fabric manager",
        "reset the GPU if nobody meant it", (_FABRIC, _NVLINK_UP)),
    _xid(156, "RESOURCE_RETIREMENT", _C.MEMORY, _A.RESET_GPU,
        "A faulty part of the memory was retired.", "memory of the card", _RESET,
        ("gpuscope_gpu_row_remap_banks",)),
    _xid(157, "RESOURCE_RETIREMENT_FAILED", _C.RECORD, _A.NONE,
        "No spare is left for a faulty part of the memory.", "memory of the card",
        "the GPU may go on; expect it again, and plan a replacement", ("gpuscope_gpu_row_remap_banks",)),
    _xid(158, "GPU_FATAL_TIMEOUT", _C.DRIVER, _A.RESET_GPU,
        "The GPU did not answer in time.", "driver or hardware", _RESET, ("xid 119",)),
    _xid(159, "CHI_NON_DATA", _C.NVLINK, _A.RESET_GPU,
        "An error on the link between CPU and GPU.", "link",
        "reset the GPU if it is used by a virtual machine or unified memory", ("xid 121",)),
    _xid(160, "CHANNEL_RETIREMENT", _C.RECORD, _A.NONE,
        "A memory channel was retired, as designed.", "memory of the card", "nothing"),
    _xid(161, "CHANNEL_RETIREMENT_FAILED", _C.RECORD, _A.NONE,
        "A memory channel could not be retired.", "memory of the card", _ONCE),
    _xid(162, "POWER_SMOOTHING_ENGAGED", _C.POWER, _A.NONE,
        "Power smoothing works again.", "by design", "nothing"),
    _xid(163, "POWER_SMOOTHING_DISENGAGED", _C.POWER, _A.CHECK_HARDWARE,
        "Power smoothing was switched off, usually because of heat.", "heat", "check the cooling", (_POWER,)),
    _xid(164, "POWER_SMOOTHING_LIFE_LOW", _C.POWER, _A.NONE,
        "The power-smoothing circuit is near the end of its life.", "wear", "plan a replacement", (_POWER,)),
    _xid(165, "POWER_SMOOTHING_LIFE_ZERO", _C.POWER, _A.CONTACT_SUPPORT,
        "The power-smoothing circuit has reached the end of its life.", "wear",
        "replace the card if power smoothing is needed", (_POWER,)),
    *_rows((166, 170), "NVLINK_SECURE_", _C.DRIVER, _A.REBOOT_NODE,
           "A secure NVLink failed (confidential computing).", "driver", "restart the virtual machine"),
    _xid(167, "PCIE_FATAL_TIMEOUT", _C.BUS, _A.REBOOT_NODE,
        "PCIe timed out for good; NVIDIA publishes no action, treat it as 79.", "power, riser or the card",
        "drain the node and power-cycle it", (_REPLAYS,)),
    _xid(168, "REDUCED_MEMORY", _C.MEMORY, _A.REBOOT_NODE,
        "Errors in protected memory while ECC is off; the GPU runs with less memory.", "memory of the card",
        "enable ECC, or reboot the node", ("gpuscope_gpu_ecc_enabled",)),
    _xid(169, "SEC2_HALT", _C.FIRMWARE, _A.RESET_GPU,
        "The security processor halted; NVIDIA publishes no action.", "firmware", _RESET),
    _xid(171, "UNCORRECTABLE_DRAM", _C.MEMORY, _A.RESET_GPU,
        "Detail of XID 48: the error is in DRAM, a row will be remapped.", "memory of the card",
        "drain the node and reset the GPU", ("xid 48", _REMAP)),
    _xid(172, "UNCORRECTABLE_SRAM", _C.MEMORY, _A.RESET_GPU,
        "Detail of XID 48: the error is in SRAM.", "memory of the card",
        "drain the node and reset the GPU; replace it when the SRAM threshold flag is set", ("xid 48", _SRAM)),
)  # fmt: skip

XIDS: Final[dict[str, GpuError]] = {row.code: row for row in _TABLE}
APPLICATION_XIDS: Final = frozenset(
    int(row.code)
    for row in _TABLE
    if row.is_application and row.action is not ErrorAction.NONE and int(row.code) not in CONTAINED_MEMORY_XIDS
)
"""XIDs to report to the program's owner; not 45, which follows every killed process."""
MAX_LEGACY_XID: Final = 138


def _explain_unknown(code: str) -> GpuError:
    if int(code) <= MAX_LEGACY_XID:
        meaning = "NVIDIA's catalogue lists this number as unused; cards before Ampere may send it."
    else:
        meaning = "This number is not in NVIDIA's public catalogue."
    next_step = "read the kernel's own line (dmesg | grep -i xid) and contact support"
    return GpuError(
        code=code,
        error_class=str(XidClass.UNKNOWN),
        action=ErrorAction.CONTACT_SUPPORT,
        meaning=meaning,
        next_step=next_step,
    )


def _is_code(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 9


def _codes(xids: Iterable[int]) -> tuple[str, ...]:
    return tuple(map(str, sorted(xids)))


_LOST = ("gpu_lost", "recovery_action")
_CHECKS: Final = (
    ErrorCheck(
        kind="xid_hardware",
        alert="XidHardware",
        severity="critical",
        codes=_codes(HARDWARE_XIDS),
        meaning="An XID that means broken hardware.",
        next_step="drain the node and do what gpuscope explain xid N says",
        why="GPU {gpus}: XID {xid}, a hardware fault",
        past="GPU {gpus}: XIDs of a hardware fault",
        inhibited_by=_LOST,
        is_sick=True,
        loses_gpu=True,
        ends_programs=True,
    ),
    ErrorCheck(
        kind="xid_nvlink",
        alert="XidNvlink",
        severity="critical",
        codes=_codes(NVLINK_XIDS),
        meaning="An XID of an NVLink.",
        next_step="look at NVLink counters, at the peer GPU and at the fabric manager",
        why="GPU {gpus}: XID {xid}, an NVLink fault",
        past="GPU {gpus}: XIDs of an NVLink fault",
        inhibited_by=(*_LOST, "xid_hardware"),
        is_sick=True,
        loses_gpu=True,
        ends_programs=True,
    ),
    ErrorCheck(
        kind="xid_driver",
        alert="XidDriver",
        severity="critical",
        codes=_codes(DRIVER_XIDS),
        meaning="An XID of driver or firmware.",
        next_step="drain the node and reset the GPU; update driver and firmware if it returns",
        why="GPU {gpus}: XID {xid}, a driver or firmware fault",
        past="GPU {gpus}: XIDs of a driver or firmware fault",
        inhibited_by=(*_LOST, "xid_hardware"),
        is_sick=True,
        loses_gpu=True,
        ends_programs=True,
    ),
    ErrorCheck(
        kind="xid_contained",
        alert="XidContained",
        severity="warning",
        codes=_codes(CONTAINED_MEMORY_XIDS),
        meaning="An uncorrectable memory error hit one program and was contained: other programs go on.",
        next_step="restart the program; reset the GPU at the next maintenance",
        why="GPU {gpus}: XID {xid}, a memory error that hit one program and was contained",
        past="GPU {gpus}: XIDs of memory errors that were contained to one program",
        inhibited_by=(*_LOST, "xid_hardware"),
    ),
    ErrorCheck(
        kind="xid_application",
        alert="XidApplication",
        severity="info",
        codes=_codes(APPLICATION_XIDS),
        meaning="An XID that a program caused; the GPU is healthy.",
        next_step="tell the job's owner; do not drain the node",
        why="GPU {gpus}: XID {xid}, caused by a program; the GPU is healthy",
        past="GPU {gpus}: XIDs that programs caused",
        inhibited_by=("xid_hardware",),
        ends_programs=True,
    ),
)

CATALOGUE: Final = ErrorCatalogue(
    key="xid",
    word="XID",
    errors=XIDS,
    explain_unknown=_explain_unknown,
    is_code=_is_code,
    code_form="XIDs are numbers",
    example="79",
    checks=_CHECKS,
)
