"""The chart's writers of text files, read by a real node_exporter."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.engines import engine, running
from tests.ports import free_port
from tests.render.kubernetes.lab_scene import CHART, MIG_GPU, NAMESPACE, RELEASE, Scene, get, label_sets
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
    # Another file of that folder stays, whoever wrote it.
    (folder / "other.prom").write_text("up_to_date 1\n")
    scene.lab.kubectl(
        "create", "job", "late-job", "-n", NAMESPACE, "--from=cronjob/gpu-session-metrics-collector"
    )
    scene.lab.helm("uninstall", RELEASE, "-n", NAMESPACE)
    scene.lab.wait_until(lambda: scene.pods_with_any_state(NAMESPACE) == [], "pods of the release stay")
    assert [path.name for path in folder.iterdir()] == ["other.prom"]


def test_a_second_writer_of_the_same_file_is_refused(scene: Scene) -> None:
    """Of another release, in another namespace: Helm cannot know of it."""
    folder = scene.lab.folder / "textfile3"
    values = ("--set", "textfile.enabled=true", "--set", f"textfile.hostPath={folder}",
              "--set", "agent.enabled=false")  # fmt: skip
    scene.install(*values)
    scene.lab.helm(
        "install", "second", CHART, "-n", "second", "--create-namespace", *scene.values, *values
    )  # fmt: skip
    try:

        def refused() -> bool:
            log = scene.lab.kubectl("logs", "-n", "second", "ds/second-gpuscope-textfile", check=False)
            return "another gpuscope writes this file" in log

        scene.lab.wait_until(refused, "two writers of one file")
    finally:
        scene.lab.helm("uninstall", "second", "-n", "second", "--wait")
        scene.lab.kubectl("delete", "namespace", "second", "--wait")
    assert [path.name for path in folder.iterdir() if path.suffix == ".prom"] == ["gpuscope.prom"]
    scene.install()


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
    scene.install()
    scene.lab.wait_until(lambda: list(folder.iterdir()) == [], "the writer has ended, its file stays")
