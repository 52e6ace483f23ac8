"""dcgm-exporter's options with its defaults, for the `dcgm` family.

`--as dcgm-exporter` sets them from dcgm-exporter's flags and environment; `--families dcgm` uses the defaults
and the labels of pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpuscope.base.errors import UsageError
from gpuscope.model.readings import Device, Instance
from gpuscope.model.readings.device import GpuOrInstance
from gpuscope.vendors.nvidia.dcgm_fields import ENTITY_NUMBER_ID
from gpuscope.vendors.nvidia.nvidia_values import own

# dcgm-exporter's `-d`: the GPUs and MIG instances to export.
#
# `f` selects every GPU, or its MIG instances if it has any; `g` whole GPUs; `i` instances. `g` and `i` take a
# list of DCGM's numbers (`g:0,2-4`), which for instances differ from the driver's ids. A number that does not
# exist selects nothing and is not an error, because GPUs can be added and removed.

MAX_ID = 1_000_000  # ranges are expanded; a typing error must not fill the memory


@dataclass(frozen=True, slots=True)
class DcgmEntity:
    """The GPU or MIG instance of a series."""

    device: Device
    instance: Instance | None = None


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    """`kind` is f, g or i; no `ids` means all."""

    kind: str = "f"
    ids: frozenset[int] | None = None

    def entities(self, devices: Iterable[Device]) -> Iterator[DcgmEntity]:
        instances = 0  # DCGM numbers the instances of all GPUs in one sequence
        for device in devices:
            if self.kind == "g" or (self.kind == "f" and not device.instances):
                if self._takes(number_of(device, device.index)):
                    yield DcgmEntity(device)
            elif self.kind != "g":
                for instance in device.instances:
                    if self._takes(number_of(instance, instances)):
                        yield DcgmEntity(device, instance)
                    instances += 1

    def _takes(self, number: int) -> bool:
        return self.ids is None or number in self.ids


EVERYTHING = DeviceSelector()


def number_of(part: GpuOrInstance, otherwise: int) -> int:
    """DCGM's number of a GPU or instance, or `otherwise` if the reading is not from DCGM."""
    number = own(part).dcgm_fields.get(ENTITY_NUMBER_ID, otherwise)
    return number if isinstance(number, int) else otherwise


def parse_selector(text: str, origin: str) -> DeviceSelector:
    kind, colon, ids = text.partition(":")
    if kind not in ("f", "g", "i"):
        raise UsageError(f"{origin}: {text!r} does not start with f, g or i; for example f, g:0,1 or i:0,2-4")
    if not colon:
        return DeviceSelector(kind)
    if kind == "f":
        raise UsageError(f"{origin}: {text!r} has ids after f, which takes none; use g:{ids} or i:{ids}")
    if ":" in ids:
        raise UsageError(f"{origin}: {text!r} has more than one list of ids; separate ids by commas")
    return DeviceSelector(
        kind, frozenset(number for part in ids.split(",") for number in _ids(part, text, origin))
    )


def _ids(part: str, text: str, origin: str) -> range:
    first, dash, last = part.partition("-")
    try:
        start = _whole(first)
        end = _whole(last) if dash else start
    except ValueError:
        raise UsageError(f"{origin}: {part!r} in {text!r} is neither an id nor a range such as 2-4") from None
    return range(start, end + 1)


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 7 or int(text) > MAX_ID:
        raise ValueError(text)
    return int(text)


DEFAULT_COLLECTORS = "/etc/dcgm-exporter/default-counters.csv"
KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmOptions:
    """dcgm-exporter's options and defaults; `given` names those set by flag or environment variable."""

    collectors: str = DEFAULT_COLLECTORS
    address: str = ":9400"
    collect_interval: int = 30000  # ms
    kubernetes: bool = False
    use_old_namespace: bool = False
    cpu_devices: DeviceSelector = EVERYTHING
    configmap_data: str = "none"
    remote_hostengine_info: str = "localhost:5555"
    kubernetes_enable_pod_labels: bool = False
    kubernetes_enable_pod_uid: bool = False
    kubernetes_gpu_id_type: str = "uid"
    kubernetes_pod_label_allowlist_regex: tuple[str, ...] = ()
    devices: DeviceSelector = EVERYTHING
    no_hostname: bool = False
    switch_devices: DeviceSelector = EVERYTHING
    fake_gpus: bool = False
    web_config_file: str = ""
    xid_count_window_size: int = 300000  # ms
    replace_blanks_in_model_name: bool = False
    debug: bool = False
    clock_events_count_window_size: int = 300000  # ms
    enable_dcgm_log: bool = False
    dcgm_log_level: str = "NONE"
    log_format: str = "text"
    pod_resources_kubelet_socket: str = KUBELET_SOCKET
    hpc_job_mapping_dir: str = ""
    nvidia_resource_names: tuple[str, ...] = ()
    kubernetes_virtual_gpus: bool = False
    dump_enabled: bool = False
    dump_directory: str = "/tmp/dcgm-exporter-debug"  # noqa: S108  never written; only accepted
    dump_retention: int = 24
    dump_compression: bool = True
    kubernetes_enable_dra: bool = False
    disable_startup_validate: bool = False
    enable_gpu_bind_unbind_watch: bool = False
    gpu_bind_unbind_poll_interval: str = "1s"
    enable_pprof: bool = False
    web_systemd_socket: bool = False

    hostname_label: str = "Hostname"  # configurable: releases after 4.8.2 write `hostname`
    given: frozenset[str] = field(default=frozenset())

    def hostname(self, node: str) -> str:
        """The value of the hostname label: the host of --remote-hostengine-info, if set, else the node."""
        if self.kubernetes or "remote_hostengine_info" not in self.given:
            return node
        return _host_part(self.remote_hostengine_info)


def _host_part(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or "]" in port or (":" in host and not host.startswith("[")):
        return address  # no port, or a bare IPv6 address
    return host.removeprefix("[").removesuffix("]")
