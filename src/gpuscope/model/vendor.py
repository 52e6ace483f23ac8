"""A GPU vendor as the rest of the program sees it: names, ids, words, tables.

Each folder of `vendors/` has a `vendor.py` with a `VENDOR`; it is registered by being there, and nothing
outside the folder names the vendor. A source sets `Device.vendor` to the folder's name. The other parts of a
vendor are found by their folders too: sources (`*/plan.py`), families (`families/*/builder.py`), `advice.py`,
`doctor.py`, `stand_ins/`, `fields.py`, `demo_models.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final, Protocol

from gpuscope.base.plugins import find_plugins
from gpuscope.model.native_metric import NativeMetric
from gpuscope.model.readings import ABSENT, Device, Maybe, Snapshot, Uuid

UNLABELLED: Final = "nvidia"
"""The vendor whose info series have no label `vendor`: they are older than the label, which would make new
series of them. A series without it is this vendor's."""


class ErrorAction(StrEnum):
    """What to do after an error, from nothing to a replacement."""

    NONE = "none"
    RESTART_APPLICATION = "restart_application"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    CHECK_HARDWARE = "check_hardware"
    UPDATE_SOFTWARE = "update_software"
    CONTACT_SUPPORT = "contact_support"
    FOLLOW_VERDICT = "follow_verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuError:
    """One code of a vendor's error catalogue: meaning, cause, what to do."""

    code: str
    name: str = ""
    error_class: str
    """Which part of the machine it is about, in the vendor's words."""
    action: ErrorAction
    meaning: str
    usual_cause: str = "not known"
    next_step: str
    related: tuple[str, ...] = ()
    """What to look at beside it: our metric names, or other errors as `xid 48`."""
    is_application: bool = False
    """It is about one program on a healthy GPU: its own mistake, or its data were damaged."""
    is_contained: bool = False
    """A memory error that hit one program: no mistake of the program, and no reason to drain the node."""

    @property
    def blames_gpu(self) -> bool:
        """Whether the GPU is suspect after it, so that somebody should act."""
        return not self.is_application and not self.is_contained and self.action is not ErrorAction.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCheck:
    """A kind of finding about errors: those of `codes`."""

    kind: str
    """Begins with the catalogue's key: `xid_hardware`."""
    alert: str
    severity: str
    """critical, warning or info."""
    codes: tuple[str, ...]
    meaning: str
    next_step: str
    why: str
    """The sentence of a finding; `{gpus}` and the catalogue's key (`{xid}`) are filled in."""
    past: str
    """The same over a time range; `{gpus}` is filled in."""
    inhibited_by: tuple[str, ...] = ()
    is_sick: bool = False
    """The GPU counts as broken meanwhile."""
    loses_gpu: bool = False
    """After such an error a GPU may stop to answer."""
    ends_programs: bool = False
    """Programs end with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCatalogue:
    key: str
    """In names: `gpuscope_gpu_xid_errors_total`, the label `xid`, `gpuscope explain xid 79`."""
    word: str
    """In sentences: XID."""
    errors: Mapping[str, GpuError]
    explain_unknown: Callable[[str], GpuError]
    """A row for a code that the catalogue does not have."""
    is_code: Callable[[str], bool]
    """Whether a text can be a code at all."""
    code_form: str
    """What a code looks like, for somebody who typed another text: XIDs are numbers."""
    example: str
    checks: tuple[ErrorCheck, ...] = ()

    def explain(self, code: str) -> GpuError:
        known = self.errors.get(code)
        return self.explain_unknown(code) if known is None else known

    @property
    def total_metric(self) -> str:
        return f"gpuscope_gpu_{self.key}_errors_total"

    @property
    def age_metric(self) -> str:
        return f"gpuscope_gpu_{self.key}_age_seconds"


@dataclass(frozen=True, slots=True)
class ThrottleReason:
    """Why clocks are held back, by the vendor's name for it. Absent from a card that does not report it."""

    reason: str
    hinders: bool
    """Whether it is a problem to act on, not the card doing what it was set to do."""
    meaning: str
    next_step: str
    is_idle: bool = False
    """The clocks are low because nothing runs: no time is counted as throttled."""


@dataclass(frozen=True, slots=True)
class KernelLogLine:
    """What a driver's line of the kernel log says: an error of a GPU (`code`), or the UUID of a GPU."""

    pci_bus_id: str  # as the driver writes it: "00000000:8D:00.0"
    code: Maybe[str] = ABSENT
    message: str = ""
    uuid: Maybe[Uuid] = ABSENT


@dataclass(frozen=True, slots=True)
class DeviceIdForm:
    """A form of the ids that schedulers give devices. The groups of the pattern say what it contains: `uuid`,
    `number` (of the device file), `address` (PCI), `ids` or `profile` of an instance, `replica` of a shared
    GPU."""

    used_by: str
    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    name: str
    """Of its folder, and the value of `Device.vendor`."""
    title: str
    """In sentences: NVIDIA."""
    pci_id: str
    """The vendor's id on the PCI bus, as sysfs writes it: 0x10de."""
    pci_classes: tuple[str, ...] = ("0x0300", "0x0302")
    """Beginnings of the PCI classes of its GPUs: VGA and 3D controllers; then come two digits of interface."""

    visible_variable: str = ""
    """The environment variable that says which of its GPUs a container has: NVIDIA_VISIBLE_DEVICES."""
    driver_source: str = ""
    """The source that asks its driver, of which the vendor's `doctor.py` has checks: nvml."""

    resources: tuple[str, ...] = ()
    """Beginnings of the names of its Kubernetes resources: nvidia.com/gpu."""
    claim_driver: str = ""
    """Its driver of dynamic resource allocation: gpu.nvidia.com."""
    id_starts: tuple[str, ...] = ()
    """Beginnings of its UUIDs: an unknown resource with such a device id is a GPU."""
    id_forms: tuple[DeviceIdForm, ...] = ()
    device_ids: Callable[[Device], Mapping[str, Uuid]] = lambda device: {}
    """Ids that schedulers give a GPU or its instances and that have no form: to the UUID of each."""

    stand_ins: tuple[str, ...] = ()
    """Exporters of its GPUs that an agent can replace, by their official names; each is a module of the
    vendor's `stand_ins/`."""

    services: tuple[str, ...] = ()
    """Programs that hold a GPU for others: daemons of the driver, other monitors."""
    work_servers: tuple[str, ...] = ()
    """Services that report the work of their clients as their own: NVIDIA's MPS server."""

    kernel_prefix: bytes = b""
    """In every line of its driver in the kernel log; empty: the driver writes nothing that is read."""
    parse_kernel_line: Callable[[str], KernelLogLine | None] = lambda text: None

    errors: ErrorCatalogue | None = None
    throttles: tuple[ThrottleReason, ...] = ()
    """Worst first."""

    instance_share: Callable[[str, str], float] = lambda profile, model: 0.0
    """An instance's share of its GPU, from its profile and the GPU's model; 0 if that is not known."""
    profile_pattern: str = ""
    """A profile within the type of a GPU in Slurm: `3g.20gb` in `a100_3g.20gb`."""
    instance_info: NativeMetric | None = None
    """The info series of instances; `ids` of an instance are the labels between `parent_uuid` and `profile`."""
    link_metrics: tuple[NativeMetric, ...] = ()
    """Native metrics of links between GPUs, under the vendor's name for them."""
    metrics: tuple[NativeMetric, ...] = ()
    """Native metrics that only this vendor has; `reading` may be `vendor_values.NAME`."""
    driver_library: str = ""
    """Where it cannot be loaded, the GPUs of the machine are another vendor's."""
    peer_link_metric: str = ""
    """The native metric, by peer, that is 0 if two GPUs reach each other over a link."""

    @property
    def bus_number(self) -> str:
        """The PCI id as `lspci -d` takes it: 10de."""
        return self.pci_id.removeprefix("0x")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterRules:
    """Alert rules over the metrics of another exporter of this vendor's GPUs.

    A row has the kind of a check, its expression there, and a template of the detail. In an expression
    `%(HOT_MEMORY_CELSIUS)s` is a threshold of the checks."""

    group: str
    """Of the rule file: dcgm-exporter."""
    metrics: str
    """The beginning of its metrics, as `gpuscope render rules --metrics` names it."""
    title: str
    rows: tuple[tuple[str, str, str], ...]
    place: str
    """Template: the GPU in a summary."""
    lookups: Mapping[str, str]
    """Templates by annotation."""
    gpu_argument: str = "{{ $labels.gpu }}"
    """Template: the GPU as the vendor's commands take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A vendor's own commands, which only the judgement needs: `ADVICE` of its `advice.py`."""

    next_steps: Mapping[str, str]
    """By kind of check: what to do on this vendor's GPUs, in place of the general step."""
    source_steps: Mapping[str, str]
    """By source: what to do when it does not answer."""
    exporter_rules: tuple[ExporterRules, ...] = ()


@cache
def vendors() -> Mapping[str, Vendor]:
    """By name."""
    plugins = find_plugins(("vendors/*/vendor.py",))
    return {name: _load(plugin.package) for name, plugin in plugins.items()}


def _load(package: str) -> Vendor:
    vendor: Vendor = importlib.import_module(f"{package}.vendor").VENDOR
    return vendor


def vendor_of(name: Maybe[str]) -> Vendor | None:
    """None where the vendor is not known."""
    return None if name is ABSENT else vendors().get(name)


def catalogues() -> Iterable[ErrorCatalogue]:
    return [vendor.errors for vendor in vendors().values() if vendor.errors is not None]


@cache
def throttle_reasons() -> Mapping[str, ThrottleReason]:
    """Of all vendors, by name, worst first."""
    return {row.reason: row for vendor in vendors().values() for row in vendor.throttles}


@cache
def idle_reasons() -> frozenset[str]:
    return frozenset(row.reason for row in throttle_reasons().values() if row.is_idle)


@cache
def advices() -> Mapping[str, Advice]:
    """By vendor."""
    plugins = find_plugins(("vendors/*/advice.py",))
    return {
        name: importlib.import_module(f"{plugin.package}.advice").ADVICE for name, plugin in plugins.items()
    }


class VendorField(Protocol):
    """A number that the families of a vendor's exporters have, each under a name of its own."""

    @property
    def name(self) -> str: ...
    @property
    def short_name(self) -> str: ...
    @property
    def dcgm_id(self) -> int | None: ...
    @property
    def unit(self) -> str: ...
    @property
    def names(self) -> Mapping[str, str]:
        """By family."""

    def is_here(self, snapshot: Snapshot) -> bool: ...


def vendor_fields() -> Iterable[VendorField]:
    """Of the vendors that have a `fields.py`."""
    plugins = find_plugins(("vendors/*/fields.py",))
    return [
        field
        for plugin in plugins.values()
        for field in importlib.import_module(f"{plugin.package}.fields").all_fields()
    ]


def next_step(kind: str, otherwise: str, vendor: str | None = None) -> str:
    """What to do about a kind of finding on the GPUs of a vendor; of any vendor without one."""
    steps = {name: advice.next_steps[kind] for name, advice in advices().items() if kind in advice.next_steps}
    if vendor is not None:
        return steps.get(vendor, otherwise)
    if len(steps) < 2:
        return next(iter(steps.values()), otherwise)
    return "; ".join(f"{vendors()[name].title}: {step}" for name, step in steps.items())
