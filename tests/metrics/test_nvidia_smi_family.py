"""The family on readings of any source: printed cells, failure metrics, processes, extras, options."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpuscope.agent.families import load_family
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import (
    ABSENT,
    Device,
    Driver,
    Maybe,
    Pid,
    Process,
    Snapshot,
    SourceStatus,
    Uuid,
)
from gpuscope.vendors.nvidia.families.nvidia_smi.builder import NvidiaSmiBuilder, Options
from gpuscope.vendors.nvidia.families.nvidia_smi.columns import cells_of_devices
from gpuscope.vendors.nvidia.families.nvidia_smi.naming import RESERVED, usable_names
from gpuscope.vendors.nvidia.families.nvidia_smi.table import SMI_COLUMNS, print_cells
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA, OWN_NAMES, make_device, make_instance
from tests.fakes import replace_readings, xid_total

GPU = Uuid("GPU-AAAA-01")
OTHER = Uuid("GPU-bbbb-02")
INSTANCE = make_instance(
    uuid=Uuid("MIG-CCCC"),
    gpu_instance=2,
    compute_instance=0,
    profile="1c.3g.40gb",
    memory_total_bytes=40e9,
    memory_used_bytes=0.0,
    engine_active_ratio={"sm": 0.5},
    profiled_pcie_bytes_per_second={"tx": 1e6},
)
DEVICE = make_device(
    uuid=GPU,
    index=0,
    model="NVIDIA L40S",
    pci_bus_id="00000000:8D:00.0",
    utilization_ratio=0.07,
    memory_used_bytes=501481472.0,
    power_watts=0.0,
    power_limit_watts={"enforced": 350.0},
    clock_hertz={"sm": 1980e6},
    performance_state=8.0,
    throttle_mask=0x24,
    throttled_seconds={"sw_power_cap": 2.500031},
    energy_joules=12345.678,
    pcie_bytes_per_second={"tx": 1000.0, "rx": 0.0},
)
NVML = SourceStatus(name="nvml", up=True, why="", code=0, duration_seconds=0.25, last_success_at=1700000000.9)
SMI = replace(NVML, name="nvidia-smi")
READINGS = {*Device.__dataclass_fields__, *OWN_NAMES}


def snapshot(*devices: Device, status: SourceStatus = NVML, **more: object) -> Snapshot:
    driver = Driver(driver_version="550.90.07", library_versions={"cuda": "12.4"})
    parts: dict[str, object] = {"drivers": {NVIDIA: driver}, "devices": devices, "sources": (status,), **more}
    return Snapshot(node="n", taken_at=0.0, **parts)  # type: ignore[arg-type]


def lines(shot: Snapshot, options: Options = Options()) -> list[str]:  # noqa: B008
    text = encode_text(NvidiaSmiBuilder(options).to_families(shot)).decode()
    return [line for line in text.split("\n") if line and not line.startswith("#")]


def named(prefix: str, found: list[str]) -> list[str]:
    return [line.removeprefix("nvidia_smi_") for line in found if line.startswith("nvidia_smi_" + prefix)]


# Columns of readings that did not come from nvidia-smi.


def test_readings_are_printed_as_nvidia_smi_would() -> None:
    cells = print_cells(DEVICE, Driver(driver_version="550.90.07"), 2)
    assert cells == {
        "count": "2",
        "uuid": GPU,
        "index": "0",
        "driver_version": "550.90.07",
        "pci.domain": "0x0000",
        "pci.bus": "0x8D",
        "pci.device": "0x00",
        "name": "NVIDIA L40S",
        "pci.bus_id": "00000000:8D:00.0",
        "pstate": "P8",
        "clocks_event_reasons.active": "0x0000000000000024",
        **{
            f"clocks_event_reasons.{reason}": "Active" if reason.startswith("sw_") else "Not Active"
            for reason in (
                *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost"),
                *("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"),
            )
        },
        "clocks_event_reasons_counters.sw_power_cap [us]": "2500031 us",
        "memory.used [MiB]": "479 MiB",
        "utilization.gpu [%]": "7 %",
        "power.draw [W]": "0.00 W",
        "enforced.power.limit [W]": "350.00 W",
        "clocks.current.sm [MHz]": "1980 MHz",
    }


def test_identity_and_position_are_printed_as_by_an_h100() -> None:
    device = make_device(
        uuid=GPU,
        index=0,
        pci_ids={"device": 0x233010DE, "sub_device": 0x16C110DE, "base_class": 3, "sub_class": 2},
        pcie_link_generation_gpu_max=5.0,
        accounting_buffer_size=4000.0,
        throttle_mask_supported=0x1FF,
        encoder_frames_per_second=60.0,
        encoder_latency_seconds=0.00125,
        gsp_firmware={"current": 1.0, "default": 0.0},
        protected_memory_bytes={"total": 3.0 * (1 << 20), "used": 1.0, "free": 0.0},
        fabric_state=3.0,
        fabric_status=0.0,
        fabric_clique=0.0,
        fabric_cluster="00000000-0000-0000-0000-000000000000",
        platform={"slot": "0", "tray": "0", "host": "1", "module": "7"},
        c2c_enabled=0.0,
    )
    cells = print_cells(device, Driver(), 1)
    assert {header: cells[header] for header in cells.keys() - {"count", "uuid", "index"}} == {
        "pci.baseClass": "0x3",
        "pci.subClass": "0x2",
        "pci.device_id": "0x233010DE",
        "pci.sub_device_id": "0x16C110DE",
        "pcie.link.gen.gpumax": "5",
        "accounting.buffer_size": "4000",
        "clocks_event_reasons.supported": "0x00000000000001FF",
        "encoder.stats.averageFps": "60",
        "encoder.stats.averageLatency": "1250",
        "gsp.mode.current": "Enabled",
        "gsp.mode.default": "Disabled",
        "c2c.mode": "Disabled",
        "protected_memory.total [MiB]": "3 MiB",
        "protected_memory.used [MiB]": "1 MiB",
        "protected_memory.free [MiB]": "0 MiB",
        "fabric.state": "Completed",
        "fabric.cliqueId": "0",
        "fabric.clusterUuid": "00000000-0000-0000-0000-000000000000",
        "platform.slot_number": "0",
        "platform.tray_index": "0",
        "platform.host_id": "1",
        "platform.module_id": "7",
    }
    found = lines(snapshot(device))
    assert named("pci_device_id", found) == ['pci_device_id{uuid="aaaa-01"} 5.90352606e+08']
    assert named("fabric_state", found) == ['fabric_state{uuid="aaaa-01"} 3']
    assert 'pci_sub_device_id="0x16C110DE"' in named("gpu_info", found)[0]


def test_zero_is_a_sample_and_absent_is_none() -> None:
    found = lines(snapshot(DEVICE))
    assert named("power_draw_watts", found) == ['power_draw_watts{uuid="aaaa-01"} 0']
    assert named("memory_total_bytes", found) == []
    assert named("utilization_gpu_ratio", found) == ['utilization_gpu_ratio{uuid="aaaa-01"} 0.07']
    assert named("name", found) == ['name{uuid="aaaa-01"} 40']


def test_gpu_info_has_its_twelve_labels() -> None:
    assert named("gpu_info", lines(snapshot(DEVICE))) == [
        'gpu_info{compute_cap="[N/A]",cuda_version="12.4",driver_model_current="[N/A]",'
        'driver_model_pending="[N/A]",driver_version="550.90.07",index="0",name="NVIDIA L40S",'
        'pci_bus_id="00000000:8D:00.0",pci_sub_device_id="[N/A]",serial="[N/A]",uuid="aaaa-01",'
        'vbios_version="[N/A]"} 1'
    ]


def test_every_column_has_a_name_of_its_own() -> None:
    headers = [column.header for column in SMI_COLUMNS]
    assert len(set(headers)) == len(headers)
    assert usable_names(headers).keys() == set(headers)


def test_columns_read_attributes_that_exist() -> None:
    for column in SMI_COLUMNS:
        assert column.reading.partition(".")[0] in READINGS, column


@given(st.sampled_from([column.reading for column in SMI_COLUMNS]), st.floats())
def test_no_number_breaks_the_printer(path: str, number: float) -> None:
    attribute, *keys = path.split(".")
    if attribute.startswith("throttle_mask") or isinstance(getattr(DEVICE, attribute, ABSENT), str):
        return
    value = {keys[0] if len(keys) == 1 else tuple(keys): number} if keys else number
    print_cells(replace_readings(DEVICE, **{attribute: value}), Driver(), 1)


# Failure metrics.


def test_before_the_first_attempt() -> None:
    waiting = SourceStatus(name="nvidia-smi", up=False, why="not read yet")
    assert lines(snapshot(status=waiting)) == [
        "nvidia_smi_failed_scrapes_total 0",
        "nvidia_smi_last_collect_success 0",
    ]


def test_after_a_failure_the_gpus_are_gone_and_the_code_stays() -> None:
    failed = replace(SMI, up=False, code=255, failed_reads=3, failures=9)
    assert lines(snapshot(status=failed)) == [
        "nvidia_smi_command_exit_code 255",
        "nvidia_smi_failed_scrapes_total 3",
        "nvidia_smi_last_collect_duration_seconds 0.25",
        "nvidia_smi_last_collect_success 0",
        "nvidia_smi_last_collect_success_timestamp_seconds 1.7e+09",
    ]


def test_the_drivers_return_code_replaces_the_exit_code() -> None:
    found = lines(snapshot(DEVICE))
    assert named("nvml_return_code", found) == ["nvml_return_code 0"]
    assert named("command_exit_code", found) == []


@pytest.mark.parametrize(
    ("statuses", "metric"),
    [
        ((replace(NVML, up=False, code=12), SMI), "command_exit_code 0"),
        ((NVML, replace(SMI, up=False, code=9)), "nvml_return_code 0"),
        ((replace(NVML, up=False, code=12), replace(SMI, up=False, code=9)), "command_exit_code 9"),
        ((replace(NVML, up=False, code=12),), "nvml_return_code 12"),
        ((replace(NVML, name="kernel-log"),), None),
    ],
)
def test_the_source_of_the_health_metrics(statuses: tuple[SourceStatus, ...], metric: str | None) -> None:
    found = lines(Snapshot(node="n", taken_at=0.0, sources=statuses))
    codes = [line for line in named("", found) if "_code " in line]
    assert codes == ([metric] if metric else [])


def test_a_requested_backend_is_the_source_of_the_health_metrics() -> None:
    """As when NVML runs beside nvidia-smi and one of them fails: the exporter knows only its own backend."""
    cells = replace_readings(DEVICE, smi_cells={"uuid": GPU, "utilization.gpu [%]": "99 %"})
    both = replace(snapshot(cells), sources=(NVML, SMI))
    ratio = 'utilization_gpu_ratio{{uuid="aaaa-01"}} {}'.format
    command, driver = (lines(both, Options(backend=backend)) for backend in ("exec", "nvml"))
    assert (named("utilization_gpu", command), named("utilization_gpu", driver)) == (
        [ratio(0.99)],
        [ratio(0.07)],
    )
    assert named("energy", driver)
    broken = replace(snapshot(DEVICE), sources=(NVML, replace(SMI, up=False, code=255)))
    assert named("command_exit_code", lines(broken, Options(backend="exec"))) == ["command_exit_code 255"]
    assert not any("uuid" in line for line in lines(broken, Options(backend="exec")))
    assert named("utilization_gpu", lines(broken)) == [ratio(0.07)]


def test_a_lost_gpu_costs_its_own_series_only() -> None:
    lost = make_device(uuid=OTHER, index=1, lost=True)
    found = lines(snapshot(DEVICE, lost))
    assert not any("bbbb-02" in line for line in found)
    assert named("count", found) == ['count{uuid="aaaa-01"} 2']


# Cells of nvidia-smi.


def test_cells_come_before_readings() -> None:
    device = replace_readings(DEVICE, smi_cells={"uuid": GPU, "utilization.gpu [%]": "99 %"})
    found = lines(snapshot(device, status=SMI))
    assert named("utilization", found) == ['utilization_gpu_ratio{uuid="aaaa-01"} 0.99']
    assert named("energy", found) == []


def test_columns_are_rebuilt_only_for_new_cells() -> None:
    builder = NvidiaSmiBuilder()
    cells = {"uuid": GPU, "utilization.gpu [%]": "99 %"}
    device = replace_readings(DEVICE, smi_cells=cells)
    first, second = (
        next(f for f in builder.to_families(snapshot(device, status=SMI)) if "utilization" in f.name)
        for _ in range(2)
    )
    assert first is second
    changed = replace_readings(DEVICE, smi_cells={**cells, "utilization.gpu [%]": "1 %"})
    text = encode_text(builder.to_families(snapshot(changed, status=SMI))).decode()
    assert 'nvidia_smi_utilization_gpu_ratio{uuid="aaaa-01"} 0.01' in text


def test_columns_left_out_by_name() -> None:
    device = replace_readings(
        DEVICE, smi_cells={"uuid": GPU, "name": "T4", "a.b [W]": "1 W", "a.c": "2", "d": "3"}
    )
    shot = snapshot(device, status=SMI)
    only = lines(shot, Options(query_field_names=("a.b",)))
    assert named("a", only) == ['a_b_watts{uuid="aaaa-01"} 1']
    excluded = lines(shot, Options(query_field_names_exclude=("a.*", "name")))
    assert named("a", excluded) == []
    assert named("d", excluded) == ['d{uuid="aaaa-01"} 3']
    assert named("name", excluded) == ['name{uuid="aaaa-01"} 4']  # an identity field cannot be left out


# Processes.


def app(pid: int, **more: object) -> Process:
    parts: dict[str, object] = {"gpu_uuid": GPU, "driver_name": "/bin/x", "memory_bytes": 1.5 * 2**20, **more}
    return Process(pid=Pid(pid), **parts)  # type: ignore[arg-type]


APPS = Options(compute_apps=True)


def test_processes_are_off_by_default() -> None:
    assert named("compute_app", lines(snapshot(DEVICE, processes=(app(1),)))) == []


def test_processes() -> None:
    idle = make_device(uuid=OTHER, index=1)
    processes = (
        app(9),
        app(10, memory_bytes=ABSENT),
        app(11, kind="G"),
        app(12, driver_name=ABSENT, command="y"),
    )
    assert named("compute_app", lines(snapshot(DEVICE, idle, processes=processes), APPS)) == [
        'compute_app_info{pid="10",process_name="/bin/x",uuid="aaaa-01"} 1',
        'compute_app_info{pid="12",process_name="y",uuid="aaaa-01"} 1',
        'compute_app_info{pid="9",process_name="/bin/x",uuid="aaaa-01"} 1',
        'compute_app_used_memory_bytes{pid="12",process_name="y",uuid="aaaa-01"} 2.097152e+06',
        'compute_app_used_memory_bytes{pid="9",process_name="/bin/x",uuid="aaaa-01"} 2.097152e+06',
        'compute_apps{uuid="aaaa-01"} 3',
        'compute_apps{uuid="bbbb-02"} 0',
        "compute_apps_last_collect_success 1",
    ]


def test_an_unreadable_process_list_is_not_an_empty_one() -> None:
    found = lines(snapshot(DEVICE, processes=ABSENT), APPS)
    assert named("compute_apps", found) == ["compute_apps_last_collect_success 0"]


def test_a_process_on_two_instances_is_summed_without_mig_labels() -> None:
    second = replace(INSTANCE, uuid=Uuid("MIG-DDDD"), ids=(2, 1))
    device = replace(DEVICE, instances=(INSTANCE, second))
    processes = (app(1, instance_uuid=INSTANCE.uuid), app(1, instance_uuid=second.uuid))
    shot = snapshot(device, processes=processes)
    found = lines(shot, APPS)
    assert named("compute_app_info", found) == [
        'compute_app_info{pid="1",process_name="/bin/x",uuid="aaaa-01"} 1'
    ]
    assert named("compute_app_used", found)[0].endswith(" 4.194304e+06")
    apart = lines(shot, Options(compute_apps=True, compute_apps_mig=True))
    assert named("compute_app_info", apart) == [
        f'compute_app_info{{compute_instance_id="{ci}",gpu_instance_id="2",pid="1",process_name="/bin/x",'
        f'uuid="aaaa-01"}} 1'
        for ci in (0, 1)
    ]


@given(st.text(max_size=60))
def test_a_hostile_process_name_is_unchanged(name: str) -> None:
    text = encode_text(
        NvidiaSmiBuilder(APPS).to_families(snapshot(DEVICE, processes=(app(1, driver_name=name),)))
    )
    if "\r" in name:  # the reference parser splits lines there, Prometheus does not
        return
    lines = [line for line in text.decode().split("\n") if "nvidia_smi_compute_app_info" in line]
    (sample,) = (s for one in text_string_to_metric_families("\n".join(lines) + "\n") for s in one.samples)
    assert sample.labels["process_name"] == name


# What the exporter has beside the columns when it reads the driver.


def test_extras() -> None:
    second = replace(INSTANCE, uuid=Uuid("MIG-DDDD"), ids=(2, 1))
    device = replace(DEVICE, instances=(INSTANCE, second))
    xids = (xid_total(79, gpu_uuid=GPU, count=2, last_at=1700000000.5),)
    found = lines(snapshot(device, errors=xids), Options(pcie_throughput=True))
    assert [*named("energy", found), *named("pcie_throughput", found), *named("xid", found)] == [
        'energy_joules_total{uuid="aaaa-01"} 12345.678',
        'pcie_throughput_rx_bytes_per_second{uuid="aaaa-01"} 0',
        'pcie_throughput_tx_bytes_per_second{uuid="aaaa-01"} 1000',
        'xid_errors_total{uuid="aaaa-01",xid="79"} 2',
        'xid_last_timestamp_seconds{uuid="aaaa-01",xid="79"} 1.7000000005e+09',
    ]
    instance = '{gpu_instance_id="2",uuid="aaaa-01"}'
    assert named("mig_", found) == [
        *(
            f'mig_info{{compute_instance_id="{ci}",gpu_instance_id="2",mig_uuid="{uuid}",profile="1c.3g.40gb",'
            f'uuid="aaaa-01"}} 1'
            for ci, uuid in ((0, "cccc"), (1, "dddd"))
        ),
        f"mig_memory_total_bytes{instance} 4e+10",
        f"mig_memory_used_bytes{instance} 0",
        f"mig_pcie_throughput_tx_bytes_per_second{instance} 1e+06",
        f"mig_sm_activity_ratio{instance} 0.5",
    ]


def test_xids_stay_when_no_gpu_can_be_read() -> None:
    xids = (xid_total(79, gpu_uuid=GPU, count=1, last_at=1.0),)
    assert named("xid_errors", lines(snapshot(status=replace(NVML, up=False, code=15), errors=xids)))
    assert not named("xid_errors", lines(snapshot(status=replace(SMI, up=False, code=15), errors=xids)))


def test_own_names_are_reserved() -> None:
    device = replace(DEVICE, instances=(INSTANCE,))
    xids = (xid_total(79, gpu_uuid=GPU, count=1, last_at=1.0),)
    options = Options(compute_apps=True, pcie_throughput=True)
    shot = snapshot(device, processes=(app(1),), errors=xids)
    columns = {name.name for name in usable_names(cells_of_devices(shot, command=False)[0]).values()}
    own = {family.name for family in NvidiaSmiBuilder(options).to_families(shot)} - columns
    assert own <= RESERVED


@pytest.mark.parametrize(
    ("driver", "spelling"),
    [
        ("470.256.02", "throttle"),
        ("525.147.05", "throttle"),
        ("535.261.03", "event"),
        ("550.163.01", "event"),
        ("555.42", "event"),
        ("590.48.01", "event"),
        ("devel", "event"),
        (ABSENT, "event"),
    ],
)
def test_clock_reasons_are_spelled_as_the_drivers_nvidia_smi_does(driver: Maybe[str], spelling: str) -> None:
    shot = replace(snapshot(DEVICE), drivers={NVIDIA: Driver(driver_version=driver)})
    names = {family.name for family in NvidiaSmiBuilder().to_families(shot)}
    pattern = re.compile(r"nvidia_smi_clocks_(event|throttle)_reasons_(?!counters)")
    reasons = {name for name in names if pattern.match(name)}
    assert len(reasons) >= 9
    assert all(name.startswith(f"nvidia_smi_clocks_{spelling}_reasons_") for name in reasons)


@pytest.mark.parametrize(
    ("driver", "is_there"), [("550.163.01", True), ("580.95.05", True), ("590.48.01", False)]
)
def test_fields_that_newer_drivers_have_removed(driver: str, is_there: bool) -> None:
    clocks = {"graphics": 1.095e9, "memory": 1.215e9}
    device = replace_readings(
        DEVICE,
        clock_application_hertz=clocks,
        clock_default_application_hertz=clocks,
        power_management=1.0,
        display_attached=0.0,
    )
    shot = replace(snapshot(device), drivers={NVIDIA: Driver(driver_version=driver)})
    values = {family.name: family.samples[0][1] for family in NvidiaSmiBuilder().to_families(shot)}
    wanted = {
        "nvidia_smi_clocks_applications_graphics_clock_hz": 1.095e9,
        "nvidia_smi_clocks_default_applications_graphics_clock_hz": 1.095e9,
        "nvidia_smi_clocks_default_applications_memory_clock_hz": 1.215e9,
        "nvidia_smi_display_mode": 0.0,
        "nvidia_smi_power_management": 1.0,
    }
    assert {name: values[name] for name in wanted if name in values} == (wanted if is_there else {})


def test_clock_reasons_requested_by_name_keep_their_name() -> None:
    shot = replace(snapshot(DEVICE), drivers={NVIDIA: Driver(driver_version="590.48.01")})
    fields = ("clocks_throttle_reasons.active", "clocks_event_reasons.gpu_idle")
    names = {family.name for family in NvidiaSmiBuilder(Options(query_field_names=fields)).to_families(shot)}
    assert {name for name in names if "_reasons_" in name} == {
        "nvidia_smi_clocks_throttle_reasons_active",
        "nvidia_smi_clocks_event_reasons_gpu_idle",
    }


def test_inactive_remapped_rows() -> None:
    device = replace_readings(DEVICE, remapped_rows_inactive={"correctable": 0.0, "uncorrectable": 3.0})
    series = [line for line in lines(snapshot(device)) if "_inactive{" in line]
    found = {line.split("{")[0]: line.rpartition(" ")[2] for line in series}
    assert found == {
        "nvidia_smi_remapped_rows_correctable_inactive": "0",
        "nvidia_smi_remapped_rows_uncorrectable_inactive": "3",
    }


def test_families_and_series_come_by_the_alphabet() -> None:
    families = NvidiaSmiBuilder(APPS).to_families(
        snapshot(make_device(uuid=OTHER, index=0), DEVICE, processes=())
    )
    names = [family.name for family in families]
    assert names == sorted(names)
    for family in families:
        series = [labels.pairs for labels, _ in family.samples]
        assert series == sorted(series)


def test_it_is_found_by_name() -> None:
    spec = load_family("nvidia_smi")
    assert not spec.openmetrics
    assert spec.build(Settings()).to_families(snapshot(DEVICE))
