"""dcgm-exporter's options with its defaults, for the `dcgm` family.

`--as dcgm-exporter` sets them from dcgm-exporter's flags and environment; `--families dcgm` uses the defaults
and the labels of pods.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuscope.vendors.nvidia.families.dcgm.device_selector import EVERYTHING, DeviceSelector

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
