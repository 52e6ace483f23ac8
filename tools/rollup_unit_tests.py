"""Unit tests of the roll-up rules in promtool's format: hand-written counters, and how much they grew.

promtool evaluates every group each hour here, a minute back (`query_offset`).
"""

from __future__ import annotations

from gpuscope.judge.rules.shipped.rule_files import FILE_NAME

TEXT = f"""\
# Unit tests of rules/{FILE_NAME}, for promtool. Written by `make docs` from tools/rollup_unit_tests.py.
rule_files: [../rules/{FILE_NAME}]
evaluation_interval: 1h
tests:
  - name: growth of an hour is exact
    interval: 15s
    input_series:
      # It was there before: 15 a scrape.
      - series: 'gpuscope_owner_gpu_seconds_total{{kind="user",name="steady",uuid="GPU-0"}}'
        values: '0+15x960'
      # A job of 20 s: two samples at 1 h 10 min, then it stays for five minutes.
      - series: 'gpuscope_owner_gpu_seconds_total{{kind="job",name="short",uuid="GPU-0"}}'
        values: '_x280 7 20x20 stale'
      # The agent starts again at 1 h 30 min: 5400 before, then from 0 on.
      - series: 'gpuscope_owner_gpu_seconds_total{{kind="user",name="restart",uuid="GPU-0"}}'
        values: '0+15x359 0+15x600'
      # Not scraped from 1 h 30 min to 3 h 30 min; the counter went on.
      - series: 'gpuscope_owner_gpu_seconds_total{{kind="user",name="gap",uuid="GPU-0"}}'
        values: '0+15x359 _x480 12600+15x120'
      - series: 'gpuscope_gpu_held_idle_seconds_total{{gpu="0",uuid="GPU-0"}}'
        values: '0x960'
    promql_expr_test:
      - expr: gpuscope:owner_gpu_seconds:growth1h
        eval_time: 2h
        exp_samples:
          - labels: 'gpuscope:owner_gpu_seconds:growth1h{{kind="user",name="steady",uuid="GPU-0"}}'
            value: 3600
          - labels: 'gpuscope:owner_gpu_seconds:growth1h{{kind="job",name="short",uuid="GPU-0"}}'
            value: 20
          - labels: 'gpuscope:owner_gpu_seconds:growth1h{{kind="user",name="restart",uuid="GPU-0"}}'
            value: 3540
          - labels: 'gpuscope:owner_gpu_seconds:growth1h{{kind="user",name="gap",uuid="GPU-0"}}'
            value: 1845
      - expr: gpuscope:owner_gpu_seconds:growth1h{{name="gap"}}
        eval_time: 4h
        exp_samples:
          - labels: 'gpuscope:owner_gpu_seconds:growth1h{{kind="user",name="gap",uuid="GPU-0"}}'
            value: 8955
      - expr: gpuscope:gpu_held_idle_seconds:growth1h
        eval_time: 2h
        exp_samples: []
      - expr: gpuscope:rollup_evaluated:hourly
        eval_time: 2h
        exp_samples:
          - labels: 'gpuscope:rollup_evaluated:hourly'
            value: 7140
"""


def rollup_unit_tests() -> dict[str, str]:
    return {FILE_NAME.replace(".yml", ".test.yml"): TEXT}
