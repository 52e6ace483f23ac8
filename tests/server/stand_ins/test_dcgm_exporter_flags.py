"""dcgm-exporter's flags and variables: completeness, precedence, and warnings for unsupported ones."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.base.errors import UsageError
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmOptions, DeviceSelector, parse_selector
from gpuscope.vendors.nvidia.stand_ins.dcgm_exporter import OPTIONS, parse_dcgm_exporter_args
from tests.examples import examples


def test_all_38_flags_are_known() -> None:
    assert len(OPTIONS) == 38
    names = {field.name for field in fields(DcgmOptions)}
    assert {option.name for option in OPTIONS} == names - {"hostname_label", "given"}


def test_defaults_equal_dcgm_exporters_without_warnings() -> None:
    options, warnings = parse_dcgm_exporter_args((), {})
    assert options == DcgmOptions()
    assert warnings == ()
    assert (options.collect_interval, options.address) == (30000, ":9400")


def test_flags_win_over_variables() -> None:
    options, _ = parse_dcgm_exporter_args(
        ["-f", "a.csv", "--collect-interval=5000", "-o", "--dump-compression=false", "-d", "g:0,2-4"],
        {"DCGM_EXPORTER_COLLECTORS": "b.csv", "DCGM_EXPORTER_LISTEN": ":9500", "DCGM_EXPORTER_INTERVAL": ""},
    )
    assert (options.collectors, options.address, options.collect_interval) == ("a.csv", ":9500", 5000)
    assert options.use_old_namespace
    assert not options.dump_compression
    assert options.devices == DeviceSelector("g", frozenset({0, 2, 3, 4}))
    assert options.given >= {"collectors", "address", "devices"}


@pytest.mark.parametrize(
    ("argv", "warned"),
    [
        (["--enable-pprof"], "--enable-pprof"),
        (["-n"], "--no-hostname"),
        (["-m", "ns:name"], "--configmap-data"),
        (["--fake-gpus"], "--fake-gpus"),
        (["-s", "g:0"], "--switch-devices"),
        (["--kubernetes-enable-dra"], "--kubernetes-enable-dra"),
        (["--web-systemd-socket"], "--web-systemd-socket"),
        (["stray"], "argument 'stray'"),
    ],
)
def test_unsupported_flags_give_one_warning(argv: list[str], warned: str) -> None:
    _, warnings = parse_dcgm_exporter_args(argv, {})
    assert len(warnings) == 1
    assert warned in warnings[0]


def test_a_flag_set_to_its_default_gives_no_warning() -> None:
    _, warnings = parse_dcgm_exporter_args(["-n=false", "--dump-retention", "24", "-s", "f"], {})
    assert warnings == ()


@pytest.mark.parametrize(
    ("argv", "env", "sentence"),
    [
        (["--nope"], {}, "dcgm-exporter has no flag --nope"),
        (["-kf"], {}, "no flag -kf"),
        (["-f"], {}, "-f needs a value"),
        (["-c", "soon"], {}, "-c: 'soon' is not an integer"),
        (["-k=perhaps"], {}, "-k: 'perhaps' is neither true nor false"),
        ([], {"DCGM_EXPORTER_KUBERNETES": "perhaps"}, "DCGM_EXPORTER_KUBERNETES: 'perhaps' is neither"),
        (["--log-format", "xml"], {}, "'xml' is not one of text, json"),
        (["-d", "x"], {}, "-d: 'x' does not start with f, g or i"),
    ],
)
def test_mistakes_in_one_sentence(argv: list[str], env: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_dcgm_exporter_args(argv, env)


def test_lists() -> None:
    argv = ["--nvidia-resource-names", "nvidia.com/a100,nvidia.com/a10", "--nvidia-resource-names=x"]
    options, _ = parse_dcgm_exporter_args(argv, {"NVIDIA_RESOURCE_NAMES": "ignored"})
    assert options.nvidia_resource_names == ("nvidia.com/a100", "nvidia.com/a10", "x")


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("localhost:5555", "localhost"),
        ("gpu7", "gpu7"),
        ("[::1]:5555", "::1"),
        ("::1", "::1"),
        ("10.0.0.1:1", "10.0.0.1"),
    ],
)
def test_the_host_engines_host_name(address: str, host: str) -> None:
    options, _ = parse_dcgm_exporter_args(["-r", address], {})
    assert options.hostname("node1") == host


def test_a_default_host_engine_has_no_host_name() -> None:
    assert DcgmOptions().hostname("node1") == "node1"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("f:1", "has ids after f"),
        ("g:1:2", "more than one list"),
        ("g:", "'' in 'g:' is neither an id nor a range"),
        ("g:1-2-3", "'1-2-3' in 'g:1-2-3' is neither"),
        ("i:-1", "neither an id nor a range"),
        ("g:0-99999999999", "neither an id nor a range"),
        ("", "does not start with"),
    ],
)
def test_selector_mistakes(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_selector(text, "-d")


RANGES = st.tuples(st.integers(0, 200), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from("gi"), st.lists(RANGES, min_size=1, max_size=6))
def test_any_list_of_ids_and_ranges(kind: str, ranges: list[tuple[int, int]]) -> None:
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    ids = frozenset(number for first, last in ranges for number in range(first, last + 1))
    assert parse_selector(f"{kind}:{text}", "-d") == DeviceSelector(kind, ids)


@settings(max_examples=examples(150), deadline=None)
@given(st.text(max_size=12) | st.text(alphabet="fgi:,-0123456789", max_size=12))
def test_any_text_is_a_selector_or_one_sentence(text: str) -> None:
    try:
        outcome = parse_selector(text, "-d").kind
    except UsageError as error:
        outcome = str(error)
    assert outcome in ("f", "g", "i") or outcome.startswith("-d: ")
