"""Family `dcgm`: byte-equal to dcgm-exporter, without its duplicate series and texts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuscope.agent.families import load_family
from gpuscope.agent.owners.job_files import read_job_files
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import ABSENT, Device, ErrorTotal, Ownership, Snapshot, Uuid
from gpuscope.vendors.nvidia.families.dcgm.builder import DcgmBuilder, build_with
from gpuscope.vendors.nvidia.families.dcgm.counters_csv import each_once
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmOptions
from gpuscope.vendors.nvidia.families.dcgm.labelled_entities import MAX_JOBS
from gpuscope.vendors.nvidia.families.dcgm.table import DEFAULT_COUNTERS, OPT_IN_COUNTERS, Counter, field_rows
from gpuscope.vendors.nvidia.nvidia_values import make_device, make_instance
from gpuscope.vendors.nvidia.stand_ins.dcgm_exporter import parse_dcgm_exporter_args
from tests.fakes import replace_readings, xid_total
from tests.goldens import check_golden
from tests.metrics.dcgm_machines import a100_mig, geforce, h100, snapshot, t4

NOW = 1_700_000_000.0
ALL_COUNTERS = each_once([*DEFAULT_COUNTERS, *OPT_IN_COUNTERS])


def options(*argv: str, **env: str) -> DcgmOptions:
    return parse_dcgm_exporter_args(argv, env)[0]


def text(builder: DcgmBuilder, shot: Snapshot) -> str:
    return encode_text(builder.to_families(shot)).decode()


def default_text(*devices: Device, argv: tuple[str, ...] = ()) -> str:
    return text(build_with(Settings(), options(*argv)), snapshot(*devices))


def series(exposition: str, name: str) -> list[str]:
    return [line for line in exposition.splitlines() if line.startswith(name + "{")]


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("h100x2", (h100(0), h100(1))),
        ("a100-mig", (a100_mig(), h100(1))),
        ("t4", (t4(),)),
        ("geforce", (geforce(),)),
    ],
)
def test_goldens_of_default_counters(name: str, devices: tuple[Device, ...]) -> None:
    check_golden(Path("dcgm") / f"{name}.metrics", default_text(*devices).encode())


def test_golden_of_every_row() -> None:
    builder = DcgmBuilder(lambda: ALL_COUNTERS, DcgmOptions())
    shots = [snapshot(h100(0), at=NOW + 30 * n, xids=[xid(h100(0), 63, NOW)]) for n in range(3)]
    for shot in shots:
        output = text(builder, shot)
    check_golden(Path("dcgm") / "h100-all-rows.metrics", output.encode())


def test_golden_of_the_old_namespace() -> None:
    argv = ("-o", "-f", "/etc/dcgm-exporter/1.x-compatibility-metrics.csv")
    check_golden(Path("dcgm") / "h100-old-namespace.metrics", default_text(h100(0), argv=argv).encode())


def test_one_line_letter_by_letter() -> None:
    assert series(default_text(h100(0)), "DCGM_FI_DEV_GPU_TEMP") == [
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-00000000-aaaa-bbbb-cccc-dddddddddddd",'
        'pci_bus_id="00000000:1A:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node1",'
        'DCGM_FI_DRIVER_VERSION="550.163.01"} 68'
    ]


def test_numbers_are_plain_or_have_six_decimals() -> None:
    output = default_text(h100(0))
    assert series(output, "DCGM_FI_DEV_POWER_USAGE")[0].endswith(" 613.257000")
    assert series(output, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")[0].endswith(" 1234567891")
    assert series(output, "DCGM_FI_DEV_GPU_UTIL")[0].endswith(" 58")
    assert series(output, "DCGM_FI_DEV_FB_USED")[0].endswith(" 40960")
    assert series(output, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")[0].endswith(" 4000")
    assert series(output, "DCGM_FI_PROF_PCIE_TX_BYTES")[0].endswith(" 123456789")
    assert series(output, "DCGM_FI_PROF_DRAM_ACTIVE")[0].endswith(" 0.000000")


def test_families_come_in_order_of_field_id() -> None:
    names = re.findall(r"# TYPE (\S+)", default_text(h100(0)))
    ids = {counter.name: counter.id for counter in DEFAULT_COUNTERS}
    assert [ids[name] for name in names] == sorted(ids[name] for name in names)


def test_another_parser_reads_the_same() -> None:
    families = list(text_string_to_metric_families(default_text(h100(0), h100(1))))
    assert len(families) == 23  # of the 25, the vGPU licence and the XID are not there
    assert all(len(family.samples) == 2 for family in families)


def test_zero_is_a_sample_and_absent_is_none() -> None:
    output = default_text(t4())
    assert series(output, "DCGM_FI_DEV_GPU_UTIL")[0].endswith(" 0")
    assert series(output, "DCGM_FI_DEV_MEMORY_TEMP") == []
    assert "MEMORY_TEMP" not in output, "no HELP without a sample"


def test_dcgms_value_is_preferred_to_a_computed_value() -> None:
    output = default_text(t4())
    assert series(output, "DCGM_FI_DEV_POWER_USAGE")[0].endswith(" 27.310000")
    assert series(output, "DCGM_FI_PROF_PCIE_TX_BYTES")[0].endswith(" 4294967296")


def test_blank_markers_of_dcgm_are_no_samples() -> None:
    blank = replace_readings(
        t4(), power_watts=ABSENT, dcgm_fields={155: 140737488355330.0, 1009: 9223372036854775794}
    )
    output = default_text(blank)
    assert series(output, "DCGM_FI_DEV_POWER_USAGE") == []
    assert series(output, "DCGM_FI_PROF_PCIE_TX_BYTES") == []


def test_a_lost_gpu_does_not_affect_other_gpus() -> None:
    lost = make_device(uuid=h100(0).uuid, index=0, lost=True)
    output = default_text(lost, h100(1))
    assert len(series(output, "DCGM_FI_DEV_GPU_TEMP")) == 1
    assert 'gpu="1"' in series(output, "DCGM_FI_DEV_GPU_TEMP")[0]


def test_mig_instances_stand_in_for_their_gpu() -> None:
    lines = series(default_text(a100_mig(), h100(1)), "DCGM_FI_DEV_FB_USED")
    assert [re.search(r" (\d+)$", line)[1] for line in lines] == ["13", "0", "40960"]  # type: ignore[index]
    assert 'modelName="NVIDIA A100-SXM4-40GB",GPU_I_PROFILE="3g.20gb",GPU_I_ID="1",Hostname=' in lines[0]
    assert 'GPU_I_PROFILE="1g.5gb",GPU_I_ID="13"' in lines[1]
    assert "GPU_I_ID" not in lines[2]
    assert 'UUID="GPU-00000000' in lines[0], "the GPU's UUID, also for an instance"


def test_an_instance_repeats_the_gpus_temperature_but_not_its_profiling() -> None:
    output = default_text(a100_mig())
    assert len(series(output, "DCGM_FI_DEV_GPU_TEMP")) == 2
    assert [line[-8:] for line in series(output, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")] == ["0.125000"]
    assert series(output, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") == []


def test_an_instance_read_by_dcgm_has_the_values_of_its_row() -> None:
    instance = make_instance(
        uuid=Uuid("MIG-1"), gpu_instance=7, compute_instance=0, profile="1g.10gb", dcgm_fields={150: 33, 252: 5}
    )
    output = default_text(h100(0, instances=(instance,)))
    assert series(output, "DCGM_FI_DEV_GPU_TEMP")[0].endswith(" 33")
    assert series(output, "DCGM_FI_DEV_POWER_USAGE") == []


def test_the_name_of_an_instance_is_its_profile(tmp_path: Path) -> None:
    counters = tmp_path / "counters.csv"
    counters.write_text("DCGM_FI_DEV_NAME, label, Name\nDCGM_FI_DEV_GPU_TEMP, gauge, Temperature\n")
    output = text(build_with(Settings(counters=str(counters)), options()), snapshot(a100_mig(), h100(1)))
    names = re.findall(r'DCGM_FI_DEV_NAME="([^"]+)"', output)
    assert names == ["3g.20gb", "1g.5gb", "NVIDIA H100 80GB HBM3"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("f", ["1", "13", None]),
        ("g", [None, None]),
        ("g:1", [None]),
        ("i", ["1", "13"]),
        ("i:1", ["13"]),
        ("i:0-1", ["1", "13"]),
        ("g:7", []),
    ],
)
def test_device_selection(selector: str, expected: list[str | None]) -> None:
    lines = series(default_text(a100_mig(), h100(1), argv=("-d", selector)), "DCGM_FI_DEV_GPU_TEMP")
    found = [re.search(r'GPU_I_ID="(\d+)"', line) for line in lines]
    assert [match[1] if match else None for match in found] == expected


def xid(device: Device, code: int, at: float) -> ErrorTotal:
    return xid_total(code, gpu_uuid=device.uuid, count=1, last_at=at)


def test_the_xid_gauge_sticks_to_the_last_code() -> None:
    device = h100(0)
    builder = build_with(Settings(), options())
    shot = snapshot(device, xids=[xid(device, 79, NOW - 5), xid(device, 48, NOW - 900)])
    line = series(text(builder, shot), "DCGM_FI_DEV_XID_ERRORS")[0]
    assert line.endswith(',err_code="79",err_msg="GPU has fallen off the bus"} 79')


def test_without_an_xid_there_is_no_sample_unless_dcgm_reports_0() -> None:
    builder = build_with(Settings(), options())
    for up in ("nvml", "dcgm", "kernel-log", ""):
        assert "XID_ERRORS" not in text(builder, snapshot(h100(0), up=up))
    as_dcgm_4_says_it = h100(0, dcgm_fields={0: 0, 150: 68})
    assert "XID_ERRORS" not in text(builder, snapshot(as_dcgm_4_says_it, up="kernel-log"))
    as_dcgm_3_says_it = h100(0, dcgm_fields={0: 0, 150: 68, 230: 0})
    (line,) = series(text(builder, snapshot(as_dcgm_3_says_it)), "DCGM_FI_DEV_XID_ERRORS")
    assert line.endswith(',err_code="0",err_msg="No Error"} 0')


@pytest.mark.parametrize(("code", "message"), [(172, "Uncorrectable SRAM Error"), (173, "Unknown Error")])
def test_xid_messages_end_where_dcgm_exporters_do(code: int, message: str) -> None:
    output = default_text(h100(0, dcgm_fields={230: code}))
    assert f'err_code="{code}",err_msg="{message}"}} {code}' in output


def test_names_of_dcgm_4_6_are_exported_as_written(tmp_path: Path) -> None:
    counters = tmp_path / "counters.csv"
    counters.write_text("DCGM_FI_DEV_BOARD_POWER_WATTS, gauge, Power.\nDCGM_FI_DEV_XID_ERROR, gauge, XID.\n")
    shot = snapshot(h100(0), xids=[xid(h100(0), 13, NOW)])
    output = text(build_with(Settings(counters=str(counters)), options()), shot)
    assert series(output, "DCGM_FI_DEV_BOARD_POWER_WATTS")[0].endswith(" 613.257000")
    assert 'err_code="13"' in series(output, "DCGM_FI_DEV_XID_ERROR")[0]


def test_both_hostname_labels() -> None:
    assert 'Hostname="node1"' in default_text(h100(0))
    newer = replace(options(), hostname_label="hostname")
    assert ',hostname="node1"' in text(build_with(Settings(), newer), snapshot(h100(0)))


def test_a_host_engine_named_outright_lends_its_name() -> None:
    assert 'Hostname="gpu7"' in default_text(h100(0), argv=("-r", "gpu7:5555"))
    assert 'Hostname="node1"' in default_text(h100(0), argv=("-k", "-r", "gpu7:5555"))


def test_blanks_in_the_model_name() -> None:
    output = default_text(h100(0, model="NVIDIA  H100 80GB"), argv=("-rbmn",))
    assert 'modelName="NVIDIA-H100-80GB"' in output


def test_hostile_label_values_are_escaped() -> None:
    output = default_text(h100(0, model='x"} 1\nevil{a="\\'))
    assert 'modelName="x\\"} 1\\nevil{a=\\"\\\\"' in output
    assert len(list(text_string_to_metric_families(output))) == 23


def with_jobs(shot: Snapshot, folder: Path) -> Snapshot:
    return replace(shot, ownership=Ownership(job_lines=read_job_files(str(folder)).lines))


def test_jobs_of_the_mapping_folder(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("4711\n4712\n4711\n")
    (tmp_path / "0.13").write_text("99\n")
    (tmp_path / "0").write_text("wrong: the GPU is split\n")
    (tmp_path / "notes.txt").write_text("not a GPU\n")
    (tmp_path / "2").mkdir()
    builder = build_with(Settings(), options("--hpc-job-mapping-dir", str(tmp_path)))
    xids = [xid(a100_mig(), 13, NOW), xid(h100(1), 13, NOW)]
    shot = with_jobs(snapshot(a100_mig(), h100(1), xids=xids), tmp_path)
    lines = series(text(builder, shot), "DCGM_FI_DEV_XID_ERRORS")
    jobs = [re.search(r'err_msg="[^"]*"(?:,hpc_job="(\w+)")?}', line)[1] for line in lines]  # type: ignore[index]
    assert jobs == [None, "99", "4711", "4712"]
    (tmp_path / "1").write_text("")
    lines = series(text(builder, with_jobs(snapshot(h100(1)), tmp_path)), "DCGM_FI_DEV_GPU_TEMP")
    assert len(lines) == 1
    assert "hpc_job" not in lines[0]


def test_jobs_are_labels_only_where_dcgm_exporter_was_told_so(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("4711\n")
    shot = with_jobs(snapshot(h100(0)), tmp_path)
    assert "hpc_job" not in text(build_with(Settings(job_map_dir=str(tmp_path)), options()), shot)


def test_a_gpu_with_very_many_jobs_is_copied_a_bounded_number_of_times(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("".join(f"{job}\n" for job in range(1000)))
    builder = build_with(Settings(), options("--hpc-job-mapping-dir", str(tmp_path)))
    lines = series(text(builder, with_jobs(snapshot(h100(0)), tmp_path)), "DCGM_FI_DEV_GPU_TEMP")
    assert len(lines) == MAX_JOBS


def test_more_attributes_can_be_plugged_in() -> None:
    def pods(entity: object) -> list[dict[str, str]]:
        return [{"pod": "train-0", "namespace": "ml", "container": "main"}]

    builder = build_with(Settings(), options(), [pods])
    shot = snapshot(h100(0), xids=[xid(h100(0), 48, NOW)])
    line = series(text(builder, shot), "DCGM_FI_DEV_XID_ERRORS")[0]
    assert 'DCGM_FI_DRIVER_VERSION="550.163.01",container="main",err_code="48",err_msg="Double' in line
    assert line.endswith('namespace="ml",pod="train-0"} 48')


def test_a_counters_file_that_changes_is_followed_and_a_wrong_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counters = tmp_path / "counters.csv"
    counters.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, one\n")
    builder = build_with(Settings(counters=str(counters)), options())
    assert "# HELP DCGM_FI_DEV_GPU_TEMP one\n" in text(builder, snapshot(h100(0)))
    counters.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, another\n")
    assert "# HELP DCGM_FI_DEV_GPU_TEMP another\n" in text(builder, snapshot(h100(0)))
    counters.write_text("rubbish\n")
    assert "# HELP DCGM_FI_DEV_GPU_TEMP another\n" in text(builder, snapshot(h100(0)))
    counters.unlink()
    assert "# HELP DCGM_FI_DEV_GPU_TEMP another\n" in text(builder, snapshot(h100(0)))
    assert caplog.text.count("the previous counters stay in use") == 2


def own(name: str, **changes: Any) -> DcgmBuilder:
    counters = [Counter(9000, name, "counter", "help")]
    return DcgmBuilder(lambda: counters, replace(DcgmOptions(), **changes))


def xid_counts(output: str) -> dict[str, str]:
    return dict(re.findall(r'window_size_in_ms="\d+",xid="(\d+)"} (\d+)', output))


def test_xid_counts_are_events_in_the_window() -> None:
    builder = own("DCGM_EXP_XID_ERRORS_COUNT", xid_count_window_size=90_000, collect_interval=1000)
    device = h100(0)
    none = 'Hostname="node1",window_size_in_ms="90000"} 0'
    assert series(text(builder, snapshot(device)), "DCGM_EXP_XID_ERRORS_COUNT")[0].endswith(none)
    for second in range(1, 90):
        output = text(builder, snapshot(device, at=NOW + second, xids=[xid(device, 31, NOW + 1)]))
        assert xid_counts(output) == {"31": "1"}, f"after {second} s"
    more = [replace(xid(device, 31, NOW + 89), count=4), xid(device, 48, NOW + 80)]
    assert xid_counts(text(builder, snapshot(device, at=NOW + 90, xids=more))) == {"31": "4", "48": "1"}
    assert xid_counts(text(builder, snapshot(device, at=NOW + 92, xids=more))) == {"31": "3", "48": "1"}
    output = text(builder, snapshot(device, at=NOW + 300, xids=more))
    assert series(output, "DCGM_EXP_XID_ERRORS_COUNT")[0].endswith(none)


def test_of_xids_before_our_start_only_the_last_is_known_to_be_in_the_window() -> None:
    builder = own("DCGM_EXP_XID_ERRORS_COUNT")
    device = h100(0)
    old = [replace(xid(device, 31, NOW - 60), count=7), replace(xid(device, 13, NOW - 3600), count=9)]
    text(builder, snapshot(device))
    assert xid_counts(text(builder, snapshot(device, at=NOW + 1, xids=old))) == {"31": "1"}


def test_xids_known_from_dcgm_alone_are_counted_when_the_code_changes() -> None:
    builder = own("DCGM_EXP_XID_ERRORS_COUNT")
    for second, code in enumerate([0, 0, 48, 48, 48, 13, 13]):
        shot = snapshot(h100(0, dcgm_fields={0: 0, 230: code}), at=NOW + second, up="dcgm")
        output = text(builder, shot)
    assert xid_counts(output) == {"48": "1", "13": "1"}


def test_clock_events_are_counted_by_bit() -> None:
    builder = own("DCGM_EXP_CLOCK_EVENTS_COUNT")
    for n, reasons in enumerate([0x4, 0x44, 0x0]):
        output = text(builder, snapshot(h100(0, throttle_mask=reasons), at=NOW + 30 * n))
    found = dict(re.findall(r'clock_event="(\w+)",window_size_in_ms="300000"} (\d+)', output))
    assert found == {"power_cap": "2", "hw_thermal": "1"}


def test_clocks_never_held_back_have_no_series_and_unknown_ones_a_zero() -> None:
    builder = own("DCGM_EXP_CLOCK_EVENTS_COUNT")
    output = text(builder, snapshot(h100(0, throttle_mask=0), h100(1, throttle_mask=ABSENT)))
    (line,) = series(output, "DCGM_EXP_CLOCK_EVENTS_COUNT")
    assert 'gpu="1"' in line
    assert line.endswith('window_size_in_ms="300000"} 0')


def health(builder: DcgmBuilder, shot: Snapshot) -> dict[str, tuple[str, str]]:
    pattern = r'health_error_code="(\w+)",health_watch="(\w+)"} (\d+)'
    return {watch: (result, code) for code, watch, result in re.findall(pattern, text(builder, shot))}


def test_health_of_a_good_gpu_has_only_checked_watches() -> None:
    found = health(own("DCGM_EXP_GPU_HEALTH_STATUS"), snapshot(h100(0)))
    assert found == dict.fromkeys(("PCIE", "NVLINK", "MEM", "THERMAL", "POWER", "ALL"), ("0", "DCGM_FR_OK"))
    assert health(own("DCGM_EXP_GPU_HEALTH_STATUS"), snapshot(geforce(), up="")) == {
        "PCIE": ("0", "DCGM_FR_OK")
    }


def test_health_of_a_bad_gpu() -> None:
    builder = own("DCGM_EXP_GPU_HEALTH_STATUS")
    device = h100(0)
    health(builder, snapshot(device))
    worse = h100(
        0,
        pcie_replays=20.0,
        violation_seconds={"power": 1.6, "thermal": 0.1},
        link_up={"0": 1.0, "1": 0.0},
        row_remap_failed=1.0,
    )
    found = health(builder, snapshot(worse, at=NOW + 10, xids=[xid(device, 95, NOW)]))
    assert found == {
        "PCIE": ("10", "DCGM_FR_PCI_REPLAY_RATE"),
        "NVLINK": ("20", "DCGM_FR_NVLINK_DOWN"),
        "MEM": ("20", "DCGM_FR_ROW_REMAP_FAILURE"),
        "THERMAL": ("10", "DCGM_FR_CLOCK_THROTTLE_THERMAL"),
        "POWER": ("10", "DCGM_FR_CLOCK_THROTTLE_POWER"),
        "ALL": ("20", "DCGM_FR_UNCONTAINED_ERROR"),
    }
    later = health(builder, snapshot(worse, at=NOW + 200))
    assert (later["PCIE"][0], later["POWER"][0]) == ("0", "0"), "a minute without growth is good again"


def test_health_series_carry_the_gpus_jobs(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("4711\n")
    builder = own("DCGM_EXP_GPU_HEALTH_STATUS", hpc_job_mapping_dir=str(tmp_path))
    assert text(builder, with_jobs(snapshot(a100_mig()), tmp_path)).count('hpc_job="4711"') == 6


def test_p2p_status_has_the_peer_and_the_reason(tmp_path: Path) -> None:
    counters = tmp_path / "counters.csv"
    counters.write_text("DCGM_EXP_P2P_STATUS, counter, P2P NvLink status\n")
    builder = build_with(Settings(counters=str(counters)), options())
    gpus = (
        h100(0, p2p_nvlink_status={"1": 0.0, "2": 3.0}),
        h100(1, p2p_nvlink_status={"0": 4.0, "2": 9.0}),
        h100(2),
    )
    output = text(builder, snapshot(*gpus))
    assert output.startswith(
        "# HELP DCGM_EXP_P2P_STATUS P2P NvLink status\n# TYPE DCGM_EXP_P2P_STATUS counter\n"
    )
    found = [
        (re.findall(r'(?:gpu|peer_gpu|link_status)="([^"]*)"', line), line.rpartition(" ")[2])
        for line in series(output, "DCGM_EXP_P2P_STATUS")
    ]
    assert found == [
        (["0", "OK", "1"], "0"),
        (["0", "TopologyNotSupported", "2"], "3"),
        (["1", "DisabledByRegKey", "0"], "4"),
        (["1", "Unknown", "2"], "9"),
    ]


def test_p2p_status_is_of_whole_gpus_and_absent_if_not_read() -> None:
    builder = own("DCGM_EXP_P2P_STATUS")
    assert text(builder, snapshot(a100_mig(), h100(1))) == ""
    output = text(builder, snapshot(replace_readings(a100_mig(), p2p_nvlink_status={"1": 5.0}), h100(1)))
    assert len(series(output, "DCGM_EXP_P2P_STATUS")) == 1
    assert "GPU_I_ID" not in output


def test_nvlink_throughput_from_the_drivers_counters() -> None:
    builder = build_with(Settings(), options())

    def shot(second: float, total: float) -> Snapshot:
        quiet = h100(0, profiled_nvlink_bytes_per_second={}, link_bytes={"tx": total, "rx": total})
        return snapshot(quiet, at=NOW + second)

    name = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
    assert series(text(builder, shot(0, 1e9)), name) == []
    assert series(text(builder, shot(10, 6e9)), name)[0].endswith(" 976"), "KiB / 1000, and no fraction"
    assert series(text(builder, shot(11, 6e9)), name)[0].endswith(" 976"), "the counter is read every 10 s"
    assert series(text(builder, shot(60, 6e9)), name)[0].endswith(" 0")


def test_nvlink_throughput_of_a_counter_at_0_is_0_at_once() -> None:
    """As DCGM has it: the driver's own total counts, not the sum over the links."""
    links = {(link, way): 7e9 for link in "01" for way in ("tx", "rx")}
    device = h100(0, nvlink_aggregate_bytes={"tx": 0.0, "rx": 0.0}, link_bytes_each=links)
    assert series(default_text(device), "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")[0].endswith(" 0")


def test_profiled_bytes_lose_their_fraction() -> None:
    device = h100(0, profiled_pcie_bytes_per_second={"tx": 123456789.9, "rx": 0.7})
    output = default_text(device)
    assert series(output, "DCGM_FI_PROF_PCIE_TX_BYTES")[0].endswith(" 123456789")
    assert series(output, "DCGM_FI_PROF_PCIE_RX_BYTES")[0].endswith(" 0")


def test_label_sets_keep_their_text_between_snapshots() -> None:
    builder = build_with(Settings(), options())
    first, second = (list(builder.to_families(snapshot(h100(0), at=NOW + n))) for n in range(2))
    assert first[0].samples[0][0] is second[0].samples[0][0]


def test_the_family_alone_has_the_originals_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCGM_EXPORTER_DEVICES_STR", "g:1")  # only `--as dcgm-exporter` reads its environment
    builder = load_family("dcgm").build(Settings())
    output = encode_text(builder.to_families(snapshot(h100(0), h100(1)))).decode()
    assert len(series(output, "DCGM_FI_DEV_GPU_TEMP")) == 2


def test_the_lists_are_dcgm_exporters() -> None:
    assert len([counter for counter in DEFAULT_COUNTERS if not counter.is_label]) == 25
    assert [counter.name for counter in DEFAULT_COUNTERS if counter.is_label] == ["DCGM_FI_DRIVER_VERSION"]
    assert len(OPT_IN_COUNTERS) == 37


def test_every_field_is_listed() -> None:
    rows = {row.id: row for row in field_rows()}
    assert len(rows) == 643
    fan = rows[191]
    assert (fan.tag, fan.short_name, fan.kind, fan.reading) == (
        "fan_speed",
        "FANSP",
        "integer",
        "fan_speed_ratio.0",
    )
    assert rows[203].names == ("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL", "dcgm_gpu_utilization")
