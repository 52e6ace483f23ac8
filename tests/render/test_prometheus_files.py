"""prometheus.yml, alertmanager.yml and rules: what they say, and that promtool and amtool accept them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from gpuscope.base.errors import UsageError
from gpuscope.cli import main
from gpuscope.serve.render import FILES, RenderedFile, WrittenFile, write_files
from gpuscope.serve.render.prometheus import (
    METRICS,
    NOT_RENDERED,
    AlertmanagerPlan,
    ScrapePlan,
    alertmanager_file,
    parse_host_names,
    prometheus_files,
    prometheus_text,
    rule_files,
)
from tests.engines import engine

CLUSTER = ScrapePlan(nodes=("server-b", "server-c"), slurm_host="server-a", alertmanager_host="server-a")


def jobs_of(text: str) -> dict[str, list[tuple[str, str]]]:
    """Targets with their `instance`, by job."""
    document = yaml.safe_load(text)
    return {
        job["job_name"]: [(group["targets"][0], group["labels"]["instance"]) for group in job["static_configs"]]
        for job in document["scrape_configs"]
    }


def test_jobs_and_instances_of_a_slurm_cluster() -> None:
    assert jobs_of(prometheus_text(CLUSTER)) == {
        "node": [("server-a:9100", "server-a"), ("server-b:9100", "server-b"), ("server-c:9100", "server-c")],
        "gpuscope": [("server-b:9400", "server-b"), ("server-c:9400", "server-c")],
        "slurm": [("server-a:8080", "server-a")],
    }


def test_a_master_that_is_also_a_node_is_scraped_once_per_job() -> None:
    jobs = jobs_of(prometheus_text(ScrapePlan(nodes=("a", "b"), slurm_host="a")))
    assert [target for target, _ in jobs["node"]] == ["a:9100", "b:9100"]


def test_the_gpu_job_may_be_called_dcgm_and_the_node_job_left_out() -> None:
    assert list(
        jobs_of(prometheus_text(ScrapePlan(nodes=("a",), gpu_job="dcgm", has_node_exporter=False)))
    ) == ["dcgm"]


def test_an_ipv6_address_is_bracketed() -> None:
    assert jobs_of(prometheus_text(ScrapePlan(nodes=("fd00::1",))))["gpuscope"] == [
        ("[fd00::1]:9400", "fd00::1")
    ]


def test_promtool_accepts_the_files(tmp_path: Path) -> None:
    promtool = engine("promtool")
    write_files(tmp_path, prometheus_files(CLUSTER))
    (tmp_path / "inline.yml").write_text(prometheus_text(CLUSTER))
    for name in ("prometheus.yml", "inline.yml"):
        done = subprocess.run([promtool, "check", "config", tmp_path / name], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout, "the rule files must be found too"


@pytest.mark.parametrize(
    "plan",
    [
        AlertmanagerPlan(),
        AlertmanagerPlan(
            webhook_url_file="/run/secrets/hook", slack_url_file="/run/secrets/slack", slack_channel="#g"
        ),
        AlertmanagerPlan(
            email="ops@example.org", smtp_host="mail:587", smtp_user="u", smtp_password_file="/run/secrets/smtp"
        ),
    ],
)
def test_amtool_accepts_every_receiver(plan: AlertmanagerPlan, tmp_path: Path) -> None:
    amtool = engine("amtool")
    write_files(tmp_path, [alertmanager_file(plan)])
    done = subprocess.run(
        [amtool, "check-config", tmp_path / "alertmanager.yml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alertmanager_without_receiver_says_so() -> None:
    assert "No receiver is configured" in alertmanager_file(AlertmanagerPlan()).content
    assert "No receiver" not in alertmanager_file(AlertmanagerPlan(webhook_url_file="/x")).content


def test_every_shipped_rule_file_is_rendered_for_some_exporter() -> None:
    shipped = {path.stem for path in (FILES / "prometheus/rules").iterdir()}
    rendered = {metrics: {file.path for file in rule_files(metrics)} for metrics in METRICS}
    names = {f"rules/{name}.rules.yml" for name in shipped - NOT_RENDERED}
    assert {path for paths in rendered.values() for path in paths} == names
    assert shipped > NOT_RENDERED


@pytest.mark.parametrize("metrics", METRICS)
def test_a_host_that_is_down_has_one_alert(metrics: str) -> None:
    """`InstanceDown` of users' own rules is the same for every target."""
    rules = [
        rule
        for file in rule_files(metrics)
        for group in yaml.safe_load(file.content)["groups"]
        for rule in group["rules"]
        if "alert" in rule and re.search(r"(?<!_)up == 0", rule["expr"])
    ]
    assert {rule["alert"] for rule in rules} <= {"HostDown", "TargetDown"}
    assert all("on (job" in rule["expr"] for rule in rules)


def test_a_runbook_is_an_address_that_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "rules", "--out", str(tmp_path / "none")]) == 0
    assert main(["render", "rules", "--page-url", "http://gpus:9470/", "--out", str(tmp_path / "named")]) == 0
    none, named = (tmp_path / name / "rules/gpuscope-use.rules.yml" for name in ("none", "named"))
    assert "runbook_url" not in none.read_text()
    assert "runbook_url: 'http://gpus:9470/explain/alert/HeldIdle'" in named.read_text()
    assert main(["render", "rules", "--page-url", "gpus", "--out", str(tmp_path)]) == 2
    assert "--page-url: 'gpus' is not a URL" in capsys.readouterr().err


def test_no_alert_is_rendered_for_two_exporters() -> None:
    """Else a problem would be notified once for each of them."""
    for metrics in METRICS:
        alerts = [
            rule["alert"]
            for file in rule_files(metrics)
            for group in yaml.safe_load(file.content)["groups"]
            for rule in group["rules"]
            if "alert" in rule
        ]
        assert alerts
        assert len(alerts) == len(set(alerts)), metrics


def test_inhibition_and_routes_are_those_of_the_rules() -> None:
    shipped = yaml.safe_load((FILES / "prometheus/alertmanager.yml").read_text())
    rendered = yaml.safe_load(alertmanager_file(AlertmanagerPlan(webhook_url_file="/x")).content)
    assert rendered["inhibit_rules"] == shipped["inhibit_rules"]
    assert rendered["route"] == shipped["route"]
    by_name = {receiver["name"]: receiver for receiver in rendered["receivers"]}
    assert by_name[shipped["route"]["receiver"]]["webhook_configs"][0]["url_file"] == "/x"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b,a", "a is given twice"),
        (" , ", "has no host name"),
        ("a:9100", "without the port"),
        ("a b", "is not a host name"),
        ("a'", "is not a host name"),
        ("a\nb", "is not a host name"),
        ("-a", "is not a host name"),
        ("x" * 300, "is not a host name"),
        ("gpu[1-3", "has unbalanced brackets; for example a,b,c or gpu[1-3]"),
        ("gpu[1-x]", "range '1-x' is not N or N-M"),
        ("gpu[1-99999]", "stands for more than 10000 nodes"),
        ("gpu[1-3],gpu2", "gpu2 is given twice"),
    ],
)
def test_a_wrong_host_name_is_one_sentence(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match="--nodes") as error:
        parse_host_names(text, "--nodes")
    assert reason in str(error.value)


def test_hosts_may_be_given_as_slurm_writes_them() -> None:
    assert parse_host_names("gpu[08-10], login", "--nodes") == ("gpu08", "gpu09", "gpu10", "login")


def test_other_content_is_replaced_only_with_force(tmp_path: Path) -> None:
    new = RenderedFile("a.yml", "new\n")
    (tmp_path / "a.yml").write_text("mine\n")
    with pytest.raises(UsageError, match="--force"):
        write_files(tmp_path, [RenderedFile("first.yml", "x"), new])
    assert (tmp_path / "a.yml").read_text() == "mine\n"
    assert not (tmp_path / "first.yml").exists(), "nothing is written if one file is refused"
    write_files(tmp_path, [new], force=True)
    assert (tmp_path / "a.yml").read_text() == "new\n"
    write_files(tmp_path, [new])  # the same content needs no --force


def test_a_kept_file_stays_also_with_force(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("mine\n")
    written = write_files(tmp_path, [RenderedFile(".env", "new\n", keep=True)], force=True)
    assert (tmp_path / ".env").read_text() == "mine\n"
    assert written == [WrittenFile(tmp_path / ".env", is_kept=True)]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["prometheus"], "--nodes"),
        (["prometheus", "--nodes", "a", "--agent-port", "0"], "--agent-port: '0' is not a port number"),
        (["prometheus", "--nodes", "a", "--interval", "fast"], "--interval: 'fast' is not a duration"),
        (["prometheus", "--nodes", "a", "--external-label", "x"], "'x' is not NAME=VALUE"),
        (["prometheus", "--nodes", "a", "--out", "/dev/null/x"], "--out /dev/null/x"),
        (["alertmanager", "--email", "a@b"], "--email and --smtp-host belong together"),
        (["alertmanager", "--email", "a@b", "--smtp-host", "mail"], "--smtp-host: 'mail' has no port"),
        (["alertmanager", "--email", "a@b", "--smtp-host", "mail:x"], "--smtp-host: 'x' is not a port number"),
        (["alertmanager", "--email", "a@b", "--smtp-host", "m l:25"], "--smtp-host: 'm l' is not a host name"),
        (["compose", "--out", "/dev/null/x"], "--out /dev/null/x: Not a directory"),
        (["counters", "--out", "/dev/null"], "--out /dev/null is not a folder; choose another one"),
        (["compose", "--out", "/dev/null"], "--out /dev/null is not a folder; choose another one"),
        (["compose", "--out", "/x", "--gpu-count", "0"], "--gpu-count"),
        (["firewall", "--from", "10.0.0.1/8"], "--from: '10.0.0.1/8' is not a network"),
        (["nothing"], "is not one of"),
    ],
)
def test_bad_input_exits_2_with_one_sentence(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", *argv]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_the_interval_is_written_as_prometheus_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "prometheus", "--nodes", "a", "--interval", "1.5s"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["global"]["scrape_interval"] == "1500ms"
