"""The parsers of the nvidia-smi source: valid output, and any hostile input."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT, Driver, Uuid
from gpuscope.vendors.nvidia.nvidia_smi.cells import (
    parse_rows,
    to_compute_mode,
    to_count_or_switch,
    to_device,
    to_mask,
    to_number,
    to_performance_state,
    to_switch,
    to_text,
)
from gpuscope.vendors.nvidia.nvidia_smi.query_text import (
    parse_compute_apps,
    parse_list,
    parse_query_text,
    short_command,
    to_instances,
)
from gpuscope.vendors.nvidia.nvidia_smi.smi_source import (
    BUILT_IN_FIELDS,
    IDENTITY_FIELDS,
    parse_help,
    parse_version,
    without_refused,
)
from gpuscope.vendors.nvidia.nvidia_values import own
from tests.fake_smi import CAPTURES
from tests.fake_smi.replay import read_sections

NOT_GIVEN = [
    *("", "N/A", "[N/A]", "[Not Supported]", "[Insufficient Permissions]", "[Unknown Error]"),
    *("[GPU is lost]", "ERR!", "[Function Not Found]", "[Requested functionality has been deprecated]"),
]
A100 = read_sections((CAPTURES / "linux-x86_64__a100-mig-mixed__550.90.07.txt").read_text("utf-8"))
T4 = read_sections((CAPTURES / "linux-x86_64__tesla-t4-x2__535.183.06.txt").read_text("utf-8"))


# Cells.


@pytest.mark.parametrize("cell", NOT_GIVEN)
def test_a_token_is_absent_for_every_reader(cell: str) -> None:
    readers = (
        to_number,
        to_switch,
        to_count_or_switch,
        to_compute_mode,
        to_performance_state,
        to_mask,
        to_text,
    )
    assert [read(cell) for read in readers] == [ABSENT] * len(readers)


@pytest.mark.parametrize(
    ("cell", "unit", "number"),
    [
        ("0 %", "%", 0.0),
        ("7 %", "%", 0.07),
        ("98.00 W", "W", 98.0),
        ("405 MHz", "MHz", 405e6),
        ("2 MiB", "MiB", 2097152.0),
        ("91230044 us", "us", 91.230044),
        ("-3", "", -3.0),
        ("16", "", 16.0),
        ("12 W", "MiB", ABSENT),  # not the unit the header promised
        ("12 parsecs", "parsecs", ABSENT),
        ("NVIDIA L40S", "", ABSENT),
        ("590.48.01", "", ABSENT),
        ("1e5", "", ABSENT),
        ("١٢", "", ABSENT),
        ("inf", "", ABSENT),
    ],
)
def test_numbers_are_in_base_units(cell: str, unit: str, number: object) -> None:
    assert to_number(cell, unit) == number


@given(st.text(max_size=30), st.sampled_from(["", "W", "%", "MHz", "MiB", "us", "ms", "C", "other"]))
def test_any_cell_is_a_finite_number_or_absent(cell: str, unit: str) -> None:
    value = to_number(cell, unit)
    assert value is ABSENT or math.isfinite(value)


# Rows.


def test_a_row_of_another_width_is_lost_and_the_others_are_not() -> None:
    table = parse_rows("banner, of ssh\nuuid, memory.used [MiB]\r\nA, 1 MiB\nB\nC, 3, x\n\nD, 4 MiB\n", "uuid")
    assert [row["uuid"] for row in table.rows] == ["A", "D"]
    assert table.rows[0] == {"uuid": "A", "memory.used [MiB]": "1 MiB"}
    assert table.dropped == 2


def test_the_half_line_of_a_killed_run_is_no_row() -> None:
    text = "uuid, name\nA, Tesla T4\nB, Tes"
    assert [row["uuid"] for row in parse_rows(text, "uuid", cut_short=True).rows] == ["A"]
    assert [row["uuid"] for row in parse_rows(text, "uuid").rows] == ["A", "B"]


def test_a_duplicate_column_is_left_out() -> None:
    assert parse_rows("uuid, a, a\nA, 1, 2\n", "uuid").rows == ({"uuid": "A"},)


_CELL = st.text(st.characters(codec="utf-8", exclude_characters=",\n\r"), max_size=8).map(str.strip)


@given(st.lists(st.tuples(_CELL, _CELL), max_size=6), st.text(max_size=40))
def test_rows_are_kept_before_any_following_text(rows: list[tuple[str, str]], rubbish: str) -> None:
    rows = [row for row in rows if any(row)]
    text = "uuid, name\n" + "".join(f"{a}, {b}\n" for a, b in rows)
    table = parse_rows(text + rubbish, "uuid")
    assert [(row["uuid"], row["name"]) for row in table.rows[: len(rows)]] == rows


@given(st.text())
def test_no_text_breaks_the_row_parser(text: str) -> None:
    table = parse_rows(text, "uuid")
    assert all(len(row) <= text.count(",") + 1 for row in table.rows)


# Devices.


@given(st.dictionaries(st.sampled_from([*BUILT_IN_FIELDS, "fan.speed [%]"]), st.text(max_size=12)))
def test_any_cells_give_a_device_or_none(cells: dict[str, str]) -> None:
    device = to_device({**cells, "uuid": "GPU-1"}, 3)
    assert device is not None
    assert device.uuid == "GPU-1"
    assert to_device({**cells, "uuid": "[GPU is lost]"}, 3) is None


def test_zero_stays_zero_and_missing_stays_absent() -> None:
    cells = {"uuid": "GPU-1", "index": "4", "utilization.gpu [%]": "0 %", "memory.used [MiB]": "[N/A]"}
    device = to_device(cells, 0)
    assert device is not None
    assert (device.index, device.utilization_ratio, device.memory_used_bytes) == (4, 0.0, ABSENT)
    assert own(device).smi_cells == cells


def test_both_names_of_the_throttle_reasons_are_read() -> None:
    for prefix in ("clocks_event_reasons", "clocks_throttle_reasons"):
        device = to_device({"uuid": "GPU-1", f"{prefix}.active": "0x0000000000000024"}, 0)
        assert device is not None
        assert own(device).throttle_mask == 0x24


def test_a_lost_gpu_keeps_its_identity_and_nothing_else() -> None:
    device = to_device({"uuid": "GPU-1", "index": "2", "power.draw [W]": "[GPU is lost]", "pstate": "P0"}, 0)
    assert device is not None
    assert device.lost
    assert (device.index, device.power_watts, device.performance_state) == (2, ABSENT, ABSENT)


# Fields.


def test_help_lists_the_first_name_of_each_field() -> None:
    fields = parse_help(A100["capabilities :: help-query-gpu"][1])
    assert "name" in fields
    assert "gpu_name" not in fields
    assert "clocks_event_reasons.active" in fields
    assert "clocks_throttle_reasons.active" in parse_help(T4["capabilities :: help-query-gpu"][1])


def test_identity_fields_are_always_queried() -> None:
    fields = parse_help('x\n\n"uuid"\nu\n\n"power.draw"\np\n')
    assert fields[:2] == ("uuid", "power.draw")
    assert set(IDENTITY_FIELDS) <= set(fields)


@given(st.text(alphabet='"\n ab.;$`|', max_size=80))
def test_no_field_can_carry_anything_into_a_shell(text: str) -> None:
    for field in parse_help('\n\n"uuid"\n\n' + text):
        assert field.replace(".", "").replace("_", "").isalnum()


@given(st.text())
def test_a_text_that_is_not_a_help_has_no_fields(text: str) -> None:
    if '"uuid"' not in text:
        assert parse_help(text) == ()


def test_a_refused_field_is_left_out_and_older_names_are_tried() -> None:
    fields = ("uuid", "clocks_event_reasons.active", "clocks_event_reasons.sync_boost", "new.field")
    said = 'Field "{}" is not a valid field to query.'.format
    assert without_refused(fields, said("new.field")) == fields[:3]
    older = without_refused(fields, said("clocks_event_reasons.active"))
    assert older[1:3] == ("clocks_throttle_reasons.active", "clocks_throttle_reasons.sync_boost")
    assert without_refused(older, said("clocks_throttle_reasons.active")) == ("uuid", "new.field")
    assert without_refused(fields, "NVIDIA-SMI has failed") == fields


# The text of -q, -L and --version.


def test_the_log_has_gpus_instances_and_processes() -> None:
    gpus = parse_query_text(A100["load :: query (-q)"][1])
    cut, whole = gpus["00000000:07:00.0"], gpus["00000000:0F:00.0"]
    assert cut.readings["architecture"] == "Ampere"
    assert cut.readings["temperature_threshold_celsius"]["memory_max"] == 95.0
    ids = [(mig.index, mig.gpu_instance, mig.compute_instance) for mig in cut.migs]
    assert ids == [(0, 1, 0), (1, 1, 1), (2, 5, 0), (3, 13, 0)]
    assert cut.migs[2].readings["memory_used_bytes"] == 3021 * 2**20
    assert [(p.pid, p.kind, p.gpu_instance) for p in cut.processes] == [
        (7001, "C", 1),
        (7002, "C", 1),
        (7103, "M+C", 5),
    ]
    assert whole.migs == ()
    assert whole.processes[0].gpu_instance is ABSENT


def test_a_process_name_cannot_speak_for_another_gpu() -> None:
    honest = A100["load :: query (-q)"][1]
    lie = "\nGPU 00000000:0F:00.0\n    Minor Number : 99\n"
    spoiled = honest + lie
    assert parse_query_text(spoiled)["00000000:0F:00.0"].readings["minor_number"] == 1


@given(st.data())
def test_no_cut_or_spoiled_log_breaks_the_parser(data: st.DataObject) -> None:
    log = A100["load :: query (-q)"][1]
    start = data.draw(st.integers(0, len(log)))
    stop = data.draw(st.integers(start, len(log)))
    parse_query_text(log[:start] + data.draw(st.text(max_size=30)) + log[stop:])


@given(st.text(alphabet="GPUMIGDevice 0:()\n-UaUID", max_size=120))
def test_no_text_breaks_the_list_parser(text: str) -> None:
    parse_list(text)
    parse_query_text(text)
    parse_version(text)


def test_the_list_has_instances_and_skips_a_lost_gpu() -> None:
    listed = parse_list(
        "GPU 0: NVIDIA A100 (UUID: GPU-aa)\n"
        "  MIG 1g.5gb      Device  0: (UUID: MIG-bb)\n"
        "Unable to determine the device handle for gpu 0000:0F:00.0: GPU is lost.\n"
        "GPU 2: NVIDIA, with (UUID: odd) name (UUID: GPU-cc)\n"
    )
    assert [(uuid, gpu.index, len(gpu.migs)) for uuid, gpu in listed.items()] == [
        ("GPU-aa", 0, 1),
        ("GPU-cc", 2, 0),
    ]
    assert listed[Uuid("GPU-aa")].migs[0].profile == "1g.5gb"


def test_an_instance_in_only_one_output_is_left_out() -> None:
    listed = parse_list(A100["capabilities :: list (-L)"][1])[Uuid("GPU-a3f0c6d2-6a57-4f0e-b8a1-00a100000040")]
    logged = parse_query_text(A100["idle :: query (-q)"][1])["00000000:07:00.0"]
    assert [i.ids[0] for i in to_instances(listed.migs[1:], logged.migs[:3])] == [1, 5]


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (
            "NVIDIA-SMI version  : 590.48.01\nNVML version : 590.48\n"
            "DRIVER version : 590.48.01\nCUDA Version : 13.1\n",
            Driver(driver_version="590.48.01", library_versions={"nvml": "590.48", "cuda": "13.1"}),
        ),
        (
            'DRIVER version : Deprecated, see "KMD version" instead\n'
            'CUDA version : Deprecated, see "CUDA UMD version" instead\n'
            "KMD version : 610.57.04\nCUDA UMD version : 13.3\n",
            Driver(driver_version="610.57.04", library_versions={"cuda": "13.3"}),
        ),
        ("Invalid combination of input arguments.\n", Driver()),
        ("CUDA version : 12.4.1\n", Driver()),
    ],
)
def test_versions(text: str, driver: Driver) -> None:
    assert parse_version(text) == driver


# Processes.


def apps(*rows: str) -> str:
    return "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n" + "".join(row + "\n" for row in rows)


def test_processes_are_read_from_both_ends() -> None:
    found = parse_compute_apps(
        apps(
            "GPU-1, 10, /opt/a, b/python3 --token=x, 12 MiB",
            "GPU-1, 11, [Not Found], [N/A]",
            "GPU-1, [Insufficient Permissions], [Insufficient Permissions], [Insufficient Permissions]",
            "GPU-9, 12, of another machine, 1 MiB",
            "GPU-1, 13",
        ),
        [Uuid("GPU-1")],
    )
    assert [(p.pid, p.driver_name, p.command, p.memory_bytes) for p in found] == [
        (10, "/opt/a, b/python3 --token=x", "a,", 12 * 2**20),
        (11, "[Not Found]", ABSENT, ABSENT),
    ]


def test_no_table_is_not_the_same_as_a_table_of_none() -> None:
    assert parse_compute_apps(apps(), []) == ()
    with pytest.raises(SourceError, match="no table"):
        parse_compute_apps("", [])


@given(st.text(max_size=200))
def test_no_row_breaks_the_process_parser(text: str) -> None:
    for process in parse_compute_apps(apps(text, f"GPU-1, 7, {text}, 1 MiB"), [Uuid("GPU-1")]):
        assert process.gpu_uuid == "GPU-1"


@given(st.text())
def test_a_short_command_is_one_word_or_absent(name: str) -> None:
    command = short_command(name)
    assert command is ABSENT or (command and len(command.split()) == 1)


def test_short_commands_have_no_arguments() -> None:
    assert short_command("/usr/bin/python3 train.py --key=s3cret") == "python3"
    assert short_command("VLLM::EngineCore") == "VLLM::EngineCore"
    assert short_command("/") == "/"
