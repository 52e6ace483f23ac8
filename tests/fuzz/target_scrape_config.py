"""The scrape configuration: any text gives a configuration or one printable error sentence.

The configuration without secrets is valid YAML, and its targets can be built.
"""

from __future__ import annotations

from pathlib import Path

from gpuscope.base.errors import UsageError
from gpuscope.base.yaml_file import parse_yaml
from gpuscope.history.scrape.config import read_config
from gpuscope.history.scrape.target import build_targets

SEEDS = (
    b"""global: {scrape_interval: 15s, external_labels: {a: b}, query_log_file: q.log, sample_limit: 5}
rule_files: [r.yml]
scrape_configs:
- job_name: 'a'
  scheme: http
  params: {p: [x]}
  basic_auth: {username: u, password: p}
  fallback_scrape_protocol: PrometheusText0.0.4
  static_configs:
  - targets: ['a:1', "b:2"]
    labels: {x: 1.10}
  relabel_configs:
  - {source_labels: [__address__], regex: '(.*):.*', target_label: h, replacement: $1}
  - {action: hashmod, source_labels: [a], modulus: 3, target_label: s}
""",
    b"""x: &a {job_name: a, body_size_limit: 10MB}
scrape_configs:
- <<: *a
  honor_labels: true
  metric_relabel_configs: [{action: drop, source_labels: [__name__], regex: go_.*}]
- job_name: b
  tls_config: {insecure_skip_verify: true, server_name: n}
  file_sd_configs: [{files: [t/*.json], refresh_interval: 1m}]
remote_write: [{url: "http://u:p@h/w", headers: {A: b}}]
alerting: {alertmanagers: [{static_configs: [{targets: [am:1]}]}]}
""",
    b"global:\n    a: b\nscrape_configs:\n- job_name: 'node'\n    static_configs:\n    - targets: ['a:1']\n",
    b'a: b: c\n\tb: \'x\n  - y\n? z\n--- !!int 5 *x "\\d" [1, {2\n',
)
TOKENS = (
    b"\n", b"\n  ", b"\t", b"  ", b": ", b"- ", b"? ", b"&a ", b"*a", b"<<: *a", b"!!int ", b"!!binary ",
    b"!!set ", b"---\n", b"|", b">", b"'", b'"', b"[", b"]", b"{", b"}", b",", b"#", b"%", b"@", b"~",
    b"15s", b"1e9",
    b"global: ", b"scrape_configs: ", b"job_name: ", b"static_configs: ", b"targets: ", b"labels: ",
    b"params: ",
    b"relabel_configs: ", b"action: ", b"regex: ", b"modulus: ", b"tls_config: ", b"authorization: ",
    b"http_headers: ", b"body_size_limit: ", b"sample_limit: ", b"\xc2\x85", b"\xff",
)  # fmt: skip


def run(data: bytes) -> None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return
    try:
        config = read_config(parse_yaml(text, "f.yml"), "f.yml", Path("/nonexistent"))
    except UsageError as error:
        said = str(error)
        assert said.startswith("f.yml")
        assert said.isprintable(), said
        assert len(said) < 2000
        return
    if config.text:
        parse_yaml(config.text, "f.yml")
    for job in config.jobs:
        for _ in build_targets(job, job.static):
            pass
