from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, load_settings
from gpuscope.serve.stand_ins import plan_listeners, settings_for, stand_in_names
from gpuscope.vendors.nvidia.dcgm.plan import DcgmSettings
from gpuscope.vendors.nvidia.nvidia_smi.plan import NvidiaSmiSettings


def plan(name: str, *argv: str, settings: Settings | None = None):  # type: ignore[no-untyped-def]
    (only,) = plan_listeners(settings or Settings(), [(name, argv)])
    return only


def test_ports_and_paths_of_the_originals() -> None:
    assert stand_in_names() == ("dcgm-exporter", "node_exporter", "nvidia_gpu_exporter", "slurm-exporter")
    ports = {name: plan(name).port for name in stand_in_names()}
    assert ports == {
        "dcgm-exporter": 9400,
        "node_exporter": 9100,
        "nvidia_gpu_exporter": 9835,
        "slurm-exporter": 8080,
    }
    assert plan("dcgm-exporter").probes == ("/health",)
    assert not plan("dcgm-exporter").openmetrics, "OpenMetrics would rename a compat family's counters"


def test_flags_of_the_originals() -> None:
    smi = plan(
        "nvidia_gpu_exporter",
        "--web.listen-address=127.0.0.1:1",
        "--web.telemetry-path",
        "/m",
        "--nvidia-smi-command",
        "ssh gpu1 nvidia-smi",
        "--collect.interval=30s",
        "--collect.backend=exec",
        "--no-collect.compute-apps",
    )
    assert (smi.host, smi.port, smi.metrics_path) == ("127.0.0.1", 1, "/m")
    settings = settings_for([smi], Settings())
    assert settings.view(NvidiaSmiSettings).nvidia_smi_command == "ssh gpu1 nvidia-smi"
    assert settings.view(NvidiaSmiSettings).nvidia_smi_interval == 30.0
    assert settings.source == "nvidia-smi"
    dcgm = plan("dcgm-exporter", "-a", ":1234", "-r", "engine:5555")
    assert dcgm.port == 1234
    assert settings_for([dcgm], Settings()).view(DcgmSettings).dcgm_host == "engine:5555"
    node = plan("node_exporter", "--path.procfs=/host/proc", "--collector.cpu", "--no-collector.wifi")
    assert settings_for([node], Settings()).path_procfs == "/host/proc"


def test_gpuscope_flags_take_precedence() -> None:
    ours = load_settings({"listen": ":7", "families": "native", "source": "demo"}, {})
    smi = plan("nvidia_gpu_exporter", "--web.listen-address=:8", "--collect.backend=nvml", settings=ours)
    assert smi.port == 7
    assert smi.families == ("native",)
    assert smi.openmetrics
    assert settings_for([smi], ours).source == "demo"


def test_unsupported_flags_give_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    plan("nvidia_gpu_exporter", "--web.enable-pprof")
    plan("node_exporter", "--collector.systemd", "--collector.textfile.directory=/x")
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "web.enable-pprof" in messages[0]
    assert "--collector.systemd --collector.textfile.directory=/x" in messages[1]


@pytest.mark.parametrize(
    ("name", "argv", "complaint"),
    [
        ("nvidia_gpu_exporter", ["--web.foo"], "has no flag --web.foo"),
        ("nvidia_gpu_exporter", ["--collect.timeout=soon"], "--collect.timeout: 'soon'"),
        ("nvidia_gpu_exporter", ["--collect.backend=rocm"], "--collect.backend: 'rocm'"),
        ("nvidia_gpu_exporter", ["--web.listen-address"], "needs a value"),
        (
            "nvidia_gpu_exporter",
            ["--collect.backend=nvml", "--query-field-names=name,power.drow"],
            "--query-field-names: nvidia-smi has no field 'power.drow' (did you mean power.draw?)",
        ),
        (
            "nvidia_gpu_exporter",
            ["--nvidia-smi-command=/nonexistent", "--query-field-names=frobnication"],
            "nvidia-smi has no field 'frobnication'; `nvidia-smi --help-query-gpu` lists them",
        ),
        (
            "nvidia_gpu_exporter",
            ["--collect.compute-apps", "--collect.compute-apps-mig"],
            "--collect.compute-apps-mig: nvidia-smi does not say",
        ),
        (
            "nvidia_gpu_exporter",
            ["--collect.backend=nvml", "--collect.compute-apps-mig"],
            "needs --collect.compute-apps",
        ),
        ("nvidia_gpu_exporter", ["--collect.pcie-throughput"], "use --collect.backend=nvml"),
        ("node_exporter", ["--web.listen-address=here"], "'here' is not HOST:PORT"),
        ("dcgm-exporter", ["-a", "nowhere"], "--address: 'nowhere'"),
        ("dcgm-exporter", ["--nope"], "has no flag --nope"),
        ("datadog", [], "unknown exporter 'datadog'"),
    ],
)
def test_a_wrong_flag_is_one_sentence(name: str, argv: list[str], complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(name, *argv)
    assert complaint in str(caught.value)


def test_fields_listed_by_nvidia_smi_are_accepted(tmp_path: Path) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text('#!/bin/sh\nprintf \'x\\n\\n"uuid"\\nThe UUID.\\n\\n"brand.new"\\nNew.\\n\'\n')
    command.chmod(0o755)
    plan("nvidia_gpu_exporter", f"--nvidia-smi-command={command}", "--query-field-names=uuid,brand.new")
    with pytest.raises(UsageError, match=r"no field 'brand\.old'"):
        plan("nvidia_gpu_exporter", f"--nvidia-smi-command={command}", "--query-field-names=brand.old")


@pytest.mark.parametrize(
    "field", ["clocks_throttle_reasons.active", "clocks_event_reasons.active", "power.draw"]
)
def test_fields_of_every_driver_are_accepted(field: str) -> None:
    plan("nvidia_gpu_exporter", "--collect.backend=nvml", f"--query-field-names={field}")


def test_listen_with_several_stand_ins_is_refused() -> None:
    ours = load_settings({"listen": ":7"}, {})
    with pytest.raises(UsageError, match="--listen is ambiguous"):
        plan_listeners(ours, [("dcgm-exporter", ()), ("node_exporter", ())])


def test_the_spelling_of_the_hostname_label() -> None:
    from gpuscope.model.readings import Snapshot
    from tests.fakes import gpu

    snapshot = Snapshot(node="n", taken_at=1.0, devices=(gpu(utilization_ratio=0.5),))
    for spelling in ("Hostname", "hostname"):
        ours = load_settings({"dcgm_hostname_label": spelling}, {})
        (builder,) = plan("dcgm-exporter", settings=ours).builders
        labels = [dict(s[0].pairs) for family in builder.to_families(snapshot) for s in family.samples]
        assert labels
        assert all(pairs[spelling] == "n" for pairs in labels)
