"""The chart's writers of text files, read by a real node_exporter."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.engines import engine, running
from tests.ports import free_port
from tests.render.kubernetes.lab_scene import MIG_GPU, NAMESPACE, Scene, get, label_sets
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def exported(folder: Path, wanted: str) -> str:
    """The text of a real node_exporter that reads the folder, once it has `wanted`."""
    address = f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        engine("node_exporter"),
        "--collector.disable-defaults",
        "--collector.textfile",
        f"--collector.textfile.directory={folder}",
        f"--web.listen-address={address}",
    ]
    with running(command, f"http://{address}/metrics"):
        return wait_for(lambda: (text := get(f"http://{address}/metrics")) and wanted in text and text, wanted)


def test_the_cron_job_writes_sessions_for_a_node_exporter(scene: Scene, pods: None) -> None:
    """With the values, the names and the commands of the tutorial."""
    folder = scene.lab.folder / "textfile"
    values = scene.lab.folder / "sessions.yaml"
    values.write_text(
        yaml.safe_dump(
            {
                "gpu-session-monitoring": {"enabled": True, "hostPath": str(folder)},
                "collection": {"schedule": "*/1 * * * *"},
                "nodeSelector": {"accelerator": "nvidia"},
            }
        )
    )
    scene.install("-f", str(values))
    expected = {(owner[1], owner[0], owner[2]) for owner in scene.run_on_gpus().values()}
    job = ("job", "test-job", "-n", NAMESPACE)
    scene.lab.kubectl("create", *job, "--from=cronjob/gpu-session-metrics-collector")
    scene.lab.kubectl("wait", "--for=condition=complete", "--timeout=90s", "job/test-job", "-n", NAMESPACE)
    text = exported(folder, "gpu_process_info")
    found = {(row["pod"], row["namespace"], row["container"]) for row in label_sets(text, "gpu_process_info")}
    assert found == expected
    assert {row["gpu"] for row in label_sets(text, "gpu_process_info") if row["pod"] == "mig"} == {
        f"{MIG_GPU}_7_0"
    }
    assert f"gpu_total_sessions {len(expected)}" in text


def test_a_daemon_set_writes_text_files_for_a_node_exporter(scene: Scene) -> None:
    folder = scene.lab.folder / "textfile2"
    scene.install(
        "--set", "textfile.enabled=true", "--set", f"textfile.hostPath={folder}",
        "--set", "textfile.interval=1s", "--set-json", 'textfile.fields=["+191"]',
    )  # fmt: skip
    text = exported(folder, "dcgm_gpu_temp{")
    assert len(list(label_sets(text, "dcgm_gpu_temp"))) == 4
    assert "gpu_session_count{" in text
    assert "node_textfile_scrape_error 0" in text
