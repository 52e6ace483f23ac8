from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.errors import UsageError
from gpuscope.base.limits import Limits
from gpuscope.base.yaml_file import TextLoader
from gpuscope.history.scrape.config import ScrapeConfig, load_config, read_config
from gpuscope.model.exposition.series_text import TextLimits
from tests.recordings import recording

# As people write it in tutorials: comments, quotes, an empty `params:`, a query log and a rule file.
TUTORIAL = """\
global:
  scrape_interval: 15s
  scrape_timeout: 15s
  evaluation_interval: 2m
  external_labels:
    monitor: 'codelab-monitor'
  query_log_file: query_log_file.log
rule_files:
  - "rule.yml"
scrape_configs:
  - job_name: 'monitoring-item'
    scrape_interval: 10s
    scrape_timeout: 10s
    metrics_path: '/metrics'
    honor_labels: false
    honor_timestamps: false
    scheme: 'http'
    params:

    static_configs:
      - targets: ['172.17.0.1:9835']
        labels:
          service : 'monitor-1'
"""


def config(text: str, folder: Path = Path("/etc/x")) -> ScrapeConfig:
    return read_config(yaml.load(text, TextLoader), "prometheus.yml", folder)


def test_the_tutorials_configuration() -> None:
    read = config(TUTORIAL)
    (job,) = read.jobs
    assert (job.name, job.interval, job.timeout, job.honor_timestamps) == ("monitoring-item", 10, 10, False)
    assert job.static[0].targets == ("172.17.0.1:9835",)
    assert job.static[0].labels == {"service": "monitor-1"}
    assert read.external_labels == {"monitor": "codelab-monitor"}
    assert read.rule_files == ("rule.yml",), "relative to the folder of the file as it was given"
    assert read.evaluation_interval == 120
    assert read.query_log_file == Path("/etc/x/query_log_file.log")
    assert read.warnings == ()
    assert yaml.safe_load(read.text) == yaml.safe_load(TUTORIAL)


def _fenced(text: str, first: str) -> str:
    """The lines of a seed from `first` to the end of their block, without its indentation."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.strip() == first)
    indent = len(lines[start]) - len(lines[start].lstrip())
    end = next(at for at in range(start, len(lines)) if lines[at].strip() in ("```", "EOF"))
    return "\n".join(line[indent:] for line in lines[start:end])


def _seed(number: str) -> str:
    return recording(f"seeds/{number}_*.txt").read_text("utf-8")


def test_the_first_seeds_file_loads_unmodified() -> None:
    read = config(_fenced(_seed("000"), "global:"))
    assert [job.name for job in read.jobs] == ["monitoring-item"]
    assert read.jobs[0].static[0].targets == ("172.17.0.1:9835",)


THREE_EXPORTERS = """\
global:
  scrape_interval: 15s
scrape_configs:
  - job_name: hosts
    static_configs:
      - targets: ['10.1.0.4:9100', '10.1.0.5:9100']
  - job_name: gpus
    static_configs:
      - targets: ['10.1.0.4:9400']
        labels:
          instance: rack-a
  - job_name: batch
    static_configs:
      - targets: ['10.1.0.2:8080']
        labels:
          instance: head
"""


def test_exporters_of_a_cluster_with_an_instance_of_their_own() -> None:
    read = config(THREE_EXPORTERS)
    assert [job.name for job in read.jobs] == ["hosts", "gpus", "batch"]
    assert read.jobs[0].static[0].targets == ("10.1.0.4:9100", "10.1.0.5:9100")
    assert read.jobs[1].static[0].labels == {"instance": "rack-a"}
    assert {job.interval for job in read.jobs} == {15}
    assert read.warnings == ()


def test_the_second_seeds_file_loads_with_corrected_indentation() -> None:
    # The copy has the keys of a list item two columns too far in, and what belongs to `labels` beside it.
    columns = {"static_configs:": 2, "- targets:": 4, "labels:": 6, "instance:": 8}
    lines = []
    for line in _fenced(_seed("001"), "global:").splitlines():
        column = next((at for word, at in columns.items() if line.strip().startswith(word)), None)
        lines.append(line if column is None else " " * column + line.strip())
    read = config("\n".join(lines))
    assert [job.name for job in read.jobs] == ["node", "dcgm", "slurm"]
    assert read.jobs[1].static[0].labels == {"instance": "server-b"}
    assert read.jobs[0].interval == 15


def test_every_key_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    read = config(
        """
global: {scrape_interval: 1m, sample_limit: 100, external_labels: {site: "$SITE-${SITE}"}}
scrape_configs:
- job_name: all
  scheme: https
  metrics_path: /m
  params: {module: [a, b]}
  basic_auth: {username: me, password_file: password}
  tls_config: {insecure_skip_verify: true, server_name: other, min_version: TLS12}
  follow_redirects: false
  body_size_limit: 10MB
  label_limit: 5
  label_name_length_limit: 6
  label_value_length_limit: 7
  target_limit: 8
  file_sd_configs: [{files: ["t/*.json", /abs/x.yml], refresh_interval: 10s}]
  relabel_configs: [{source_labels: [a], target_label: b, regex: 9}]
  metric_relabel_configs: [{action: DROP, source_labels: [__name__], regex: go_.*}]
remote_write: [{url: "http://u:p@vm:8428/api/v1/write"}]
alerting: {alertmanagers: [{static_configs: [{targets: [am:9093]}]}]}
""",
        tmp_path,
    )
    (job,) = read.jobs
    limits = job.limits
    assert (limits.body_bytes, limits.samples, limits.labels) == (10 << 20, 100, 5)
    assert (limits.label_name_length, limits.label_value_length, limits.targets) == (6, 7, 8)
    assert job.params == (("module", ("a", "b")),)
    assert job.http.headers == (("authorization", "Basic bWU6c2VjcmV0"),)
    assert job.http.server_name == "other"
    assert not job.http.follow_redirects
    assert "secret" not in repr(job)
    assert job.files == (str(tmp_path / "t/*.json"), "/abs/x.yml")
    assert job.relabel[0].regex == "9"
    assert job.metric_relabel[0].action == "drop"
    assert read.remote_write[0].url == "http://vm:8428/api/v1/write"
    assert read.remote_write[0].http.headers == (("authorization", "Basic dTpw"),)
    assert read.alerting["alertmanagers"]
    assert read.warnings == ()


def test_strings_are_not_converted() -> None:
    read = config(
        """
scrape_configs:
- job_name: 007
  honor_labels: yes
  sample_limit: 10
  static_configs: [{targets: ["a:1"], labels: {version: 1.10, on: yes, day: 2024-01-01, none: , big: 1e3}}]
  relabel_configs: [{target_label: a, replacement: ''}, {target_label: b, replacement: }]
"""
    )
    (job,) = read.jobs
    assert (job.name, job.honor_labels, job.limits.samples) == ("007", True, 10)
    labels = {"version": "1.10", "on": "yes", "day": "2024-01-01", "none": "", "big": "1e3"}
    assert job.static[0].labels == labels
    assert [rule.replacement for rule in job.relabel] == ["", "$1"]
    assert (
        yaml.load(read.text, TextLoader)["scrape_configs"][0]["static_configs"][0]["labels"]["version"]
        == "1.10"
    )
    assert "version: 1.10" in read.text


def test_external_labels_expand_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITE", "lab")
    read = config('global: {external_labels: {a: "$SITE-${SITE}$$", b: "$NO_SUCH"}}')
    assert read.external_labels == {"a": "lab-lab$", "b": ""}


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("{}", ["job_name"]),
        ("{job_name: j, scrape_interval: 10}", ["job 'j'", "scrape_interval", "'10'"]),
        ("{job_name: j, scrape_interval: 10s, scrape_timeout: 20s}", ["'j'", "scrape_timeout", "20s"]),
        ("{job_name: j, honour_labels: true}", ["'j'", "honour_labels", "unknown key"]),
        ("{job_name: j, honor_labels: maybe}", ["'j'", "honor_labels", "true or false"]),
        ("{job_name: j, scheme: ftp}", ["'j'", "scheme", "ftp"]),
        (
            "{job_name: j, static_configs: [{targets: ['http://a:1/metrics']}]}",
            ["targets", "http://a:1/metrics"],
        ),
        ("{job_name: j, static_configs: {targets: [a]}}", ["static_configs", "a list"]),
        ("{job_name: j, static_configs: [{targets: a}]}", ["targets", "a list"]),
        ("{job_name: j, relabel_configs: [{regex: '('}]}", ["'j'", "relabel_configs[0]", "regex"]),
        ("{job_name: j, relabel_configs: [{action: zap}]}", ["action", "zap"]),
        ("{job_name: j, relabel_configs: [{action: hashmod, target_label: a}]}", ["modulus"]),
        ("{job_name: j, relabel_configs: [{source_labels: [a]}]}", ["target_label"]),
        ("{job_name: j, file_sd_configs: [{files: [x.txt]}]}", ["files", "x.txt"]),
        ("{job_name: j, basic_auth: {password_file: nosuch}}", ["basic_auth", "password_file", "nosuch"]),
        ("{job_name: j, basic_auth: {username: a}, bearer_token: b}", ["authorization"]),
        ("{job_name: j, tls_config: {ca_file: nosuch.pem}}", ["tls_config", "ca_file"]),
        ("{job_name: j, body_size_limit: big}", ["body_size_limit", "big"]),
        ("{job_name: j, sample_limit: -1}", ["sample_limit", "-1"]),
        ("{job_name: j, http_headers: {'a b': {values: [x]}}}", ["http_headers", "a b"]),
        ("{job_name: j}, {job_name: j}", ["'j'", "must be unique"]),
    ],
)
def test_a_mistake_is_one_sentence_with_its_location(job: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        config(f"scrape_configs: [{job}]")
    said = str(caught.value)
    assert said.startswith("prometheus.yml: ")
    assert "\n" not in said
    for word in words:
        assert word in said


def test_fallback_scrape_protocol() -> None:
    (job,) = config("scrape_configs: [{job_name: j, fallback_scrape_protocol: OpenMetricsText1.0.0}]").jobs
    assert job.fallback_protocol == "OpenMetricsText1.0.0"
    read = config("scrape_configs: [{job_name: j, fallback_scrape_protocol: PrometheusProto}]")
    assert read.jobs[0].fallback_protocol == ""
    assert read.warnings == (
        "prometheus.yml: job 'j': fallback_scrape_protocol PrometheusProto is not supported and ignored",
    )
    for wrong in (
        "scrape_configs: [{job_name: j, fallback_scrape_protocol: text}]",
        "global: {fallback_scrape_protocol: PrometheusText0.0.4}",
    ):
        with pytest.raises(UsageError, match="fallback_scrape_protocol"):
            config(wrong)


def test_limits_of_the_file_and_of_the_server() -> None:
    text = """
global: {sample_limit: 10, label_limit: 600, body_size_limit: 1MB}
scrape_configs:
- {job_name: a, sample_limit: 0, label_value_length_limit: 100, label_name_length_limit: 4000}
- {job_name: b, sample_limit: 20, target_limit: 5, body_size_limit: 1KB}
"""
    server = Limits(scrape_max_labels=7, scrape_max_label_value_bytes=300, scrape_max_line_bytes=999)
    first, second = (job.limits for job in read_config(yaml.load(text, TextLoader), "f", Path(), server).jobs)
    assert (first.samples, first.labels, first.body_bytes, first.targets) == (10, 600, 1 << 20, 0)
    assert (first.label_value_length, first.label_name_length) == (100, 4000)
    assert first.text == TextLimits(600, 4000, 300, 999), "relabelling may still make the labels smaller"
    assert (second.samples, second.targets, second.body_bytes) == (20, 5, 1024)
    assert second.label_value_length == 300


def test_each_unsupported_key_is_a_warning() -> None:
    read = config(
        "scrape_configs: [{job_name: k, ec2_sd_configs: [{region: x}], consul_sd_configs: [{}], "
        "scrape_protocols: [OpenMetricsText1.0.0]}]\ntracing: {endpoint: x}"
    )
    assert len(read.warnings) == 4
    assert "job 'k': ec2_sd_configs" in read.warnings[0]


def test_secrets_are_redacted() -> None:
    read = config(
        """
scrape_configs:
- {job_name: a, basic_auth: {username: u, password: hidden1, password_file: }}
- {job_name: b, http_headers: {X-Key: {secrets: [hidden3], values: [hidden4]}}}
- {job_name: e, authorization: {credentials: hidden2}}
- {job_name: c, bearer_token: hidden5, consul_sd_configs: [{token: hidden6, oauth2: {client_secret: hidden7}}]}
- {job_name: d, proxy_url: "http://me:hidden8@proxy:1", scrape_interval: 15s}
remote_write: [{url: "http://u:hidden9@x/w", headers: {Authorization: hidden10}}]
alerting: {alertmanagers: [{basic_auth: {password: hidden11}}]}
"""
    )
    assert "hidden" not in read.text
    assert "http://<secret>@proxy:1" in read.text
    assert "scrape_interval: 15s" in read.text
    assert "username: u" in read.text


def test_unreadable_and_invalid_files(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yml"
    bad.write_text("a: [")
    for path in (bad, tmp_path / "nosuch.yml", tmp_path):
        with pytest.raises(UsageError, match=str(path)):
            load_config(path)
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError):
        load_config(bad)


_KEYS = [
    "global", "scrape_configs", "job_name", "static_configs", "targets", "labels", "relabel_configs", "regex",
    "action", "scrape_interval", "params", "tls_config", "basic_auth", "file_sd_configs", "files",
    "remote_write", "url", "external_labels", "http_headers", "rule_files", "body_size_limit", "authorization",
    "modulus",
]  # fmt: skip
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "a", "5s", "(", "a:1", "replace"])
)
_TREES: st.SearchStrategy[Any] = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=5),
    max_leaves=20,
)


def complaint(document: Any) -> str:
    try:
        read_config(document, "f", Path("/nonexistent"))
    except UsageError as error:
        return str(error)
    return "fine"


@given(st.dictionaries(st.sampled_from(_KEYS), _TREES, max_size=4) | _TREES)
def test_any_document_is_a_configuration_or_one_sentence(document: Any) -> None:
    assert "\n" not in complaint(document)


@given(st.lists(st.dictionaries(st.sampled_from(_KEYS), _TREES, max_size=6), min_size=1, max_size=2))
def test_any_job_is_a_job_or_one_sentence(jobs: list[Any]) -> None:
    for number, job in enumerate(jobs):
        job["job_name"] = f"j{number}"
    assert complaint({"scrape_configs": jobs}).startswith(("f: ", "fine"))
