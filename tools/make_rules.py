"""Writes deploy/prometheus from the rows of the checks: rule files, their unit tests, Alertmanager's example.

Called by `make docs`; tests compare the files with what this returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuscope.base.time_text import duration_text
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.rules.shipped import inhibit_rules, rule_files, shipped_groups
from gpuscope.judge.rules.shipped.rule_files import FILE_NAME as ROLLUP_FILE
from gpuscope.judge.rules.shipped.rule_files import rollup_file
from gpuscope.judge.rules.shipped.shipped_rule import WATCHDOG
from tools.rollup_unit_tests import rollup_unit_tests
from tools.rule_unit_tests import unit_test_files

PROMETHEUS = Path(__file__).parent.parent / "deploy/prometheus"

ALERTMANAGER = """\
# An Alertmanager configuration for the shipped rules. Written by `make docs` from src/gpuscope/health.
# Change the receivers; keep the inhibition rules: they leave out what another alert explains.
route:
  receiver: operators
  group_by: [alertname, instance]
  group_wait: 30s
  group_interval: 5m
  repeat_interval: 12h
  routes:
    - matchers: [alertname = Watchdog]
      receiver: dead-man
      group_wait: 0s
      # One message a minute: a repetition leaves at the first group_interval after repeat_interval has passed.
      group_interval: 30s
      repeat_interval: 50s
    - matchers: [severity = info]
      receiver: operators
      group_wait: 10m
      repeat_interval: 3d

receivers:
  - name: operators
    # email_configs: [{to: gpu-admins@example.org}]
  - name: dead-man
    # webhook_configs: [{url: https://dead-man.example.org/ping, send_resolved: false}]

inhibit_rules:"""


def alertmanager_file() -> Iterator[str]:
    yield ALERTMANAGER
    for source, targets, equal in inhibit_rules():
        yield f"  - source_matchers: ['alertname = {source}']"
        yield f"    target_matchers: ['alertname =~ \"{'|'.join(targets)}\"']"
        if equal:
            yield f"    equal: [{', '.join(equal)}]"


def deployed_files() -> dict[Path, str]:
    """The text of every generated file, by path under deploy/prometheus."""
    return {
        **{Path("rules") / name: text for name, text in rule_files().items()},
        Path("rules") / ROLLUP_FILE: rollup_file(),
        **{Path("tests") / name: text for name, text in (unit_test_files() | rollup_unit_tests()).items()},
        Path("alertmanager.yml"): "\n".join(alertmanager_file()) + "\n",
    }


PAGE = """# Alert rules

Generated from `src/gpuscope/judge/checks/` and `src/gpuscope/judge/rules/shipped/` by `make docs`; do not edit.

`gpuscope up` evaluates the groups `gpuscope-*`, `gpuscope server` those of the roll-ups.
`deploy/prometheus/rules/` has them as files for Prometheus, vmalert, Thanos, Mimir and `gpuscope server
--rules`. Each alert has a unit test that fires and one that does not (`deploy/prometheus/tests/`):

```
promtool check rules deploy/prometheus/rules/*.yml
promtool test rules deploy/prometheus/tests/*.yml
```

| file | rules | for |
|---|---|---|"""

EDITING = """
## Changing rules

- **Another threshold, duration or severity:** copy the file, edit the copy and load it instead of ours. An
  expression is ordinary PromQL; `for`, `labels` and `annotations` are Prometheus'. Run `promtool check
  rules` on it.
- **One rule less:** delete it from the copy, or silence it. In a file with `gpu: &gpu …` keep the first
  occurrence: the other rules refer to it with `*gpu`.
- **In `gpuscope up`:** a group of the same name in a `--rules` file replaces the shipped group; a group without
  rules (`rules: []`) switches it off. Both also take its `-slow` group.
- **Alertmanager:** `deploy/prometheus/alertmanager.yml` has the inhibition rules of the last column below,
  and a route for `Watchdog`, which always fires: send it to a service that reports when it stops.
- **Annotations:** `summary` and `description` say what is wrong, `gpu` names node, GPU and model, `owner`
  who used it in the last ten minutes, or that the owner is not known, `next_step` what to do. Models and
  owners are looked up when the alert is evaluated and are no labels: an alert does not become another one when
  its owner changes.
- **`runbook_url`** is a page that gpuscope serves, `/explain/alert/NAME`; `gpuscope explain alert NAME` prints
  the same. `gpuscope up` and `server` use their own address (`--external-url`). Files for Prometheus have it if
  you name the address: `gpuscope render rules --page-url http://gpus.example.org:9470 --out DIR`; the files in
  `deploy/` have none.
- **Groups `NAME-slow`** hold the rules that read hours of samples, and those of severity info. They are
  evaluated once a minute, as findings of severity info are.

Users' own rules (`InstanceDown`, `APIHighRequestLatency`, `HighGPUUtilization`, `LongRunningGPUProcess`)
are in `instances.yml` and `gpu-sessions.yml` word for word, with corrected twins; [sessions](sessions.md)
says what the originals compute. `instances.yml` is not rendered with the others: its `InstanceDown` fires for
every target, also where `HostDown` does.

Over dcgm-exporter the XID alerts see only the last XID of a GPU, and not that it happened again: its gauge
keeps the last value. Owners are known there only as pod labels. nvidia_gpu_exporter has no owners.
"""

CHOICES = """## Why they are as they are

- **One event is one critical alert.** A GPU that falls off the bus is `GpuNotAnswering`; `XidHardware`,
  `GpuRecoveryAction` and `GpuCountDropped` of the same event are held back, and shown beneath it. A critical
  XID alert waits for a minute, so that the alert that explains it is there first. `GpusMissing` does not count
  GPUs that are lost.
- **An XID alert fires for an hour**, as long as the page shows the finding; over dcgm-exporter and
  nvidia_gpu_exporter for ten minutes.
- **XID 94** is `XidContained`: neither a program's mistake nor a reason to drain the node. `EccUncorrected`
  does not fire for it.
- **XID 45 has no alert.** It follows every process that is killed, thousands of times for one job. **XID
  137** is an illegal access to a peer GPU by a program, so it is in `XidApplication` and not in `XidNvlink`,
  whose next step is to drain the node. So are the XIDs of video, JPEG and optical-flow engines.
- **`HostDown` is about nodes that have an agent**, by their job and instance in the last day; a dead exporter
  of another job is none of them. `TargetDown` is a target of such a job that never answered as an agent. Over
  dcgm-exporter and nvidia_gpu_exporter, `HostDown` is about the jobs that have their series.
- **`JobsFailOnGpu` needs programs of two users:** the mistake of one user fails on every GPU.
- **`MemoryLeak` grows all the time:** a second model that is loaded once is no leak.
- **`HostDown` holds back alerts about its GPUs.** Their series end with the node, and "resolved" would read
  like an all-clear.
- **`HeldIdle` leaves after one hour without work:** 15 minutes in the expression, which is what the page
  calls held and idle, and 45 minutes of `for`. `AllocatedUnused` is the same for a GPU without any process.
- **Starting is not waste:** `AllocatedUnused` and the alerts about waiting begin ten minutes after the start of
  a job or process.
- **`OnlySomeGpusWork` is about one program:** the container of a pod, the step of a job, or the children of one
  launcher; never two programs with the same name.
- **`SlowSibling` compares clocks, not power.** Power follows the work: two healthy GPUs at 55 % and 95 %
  utilisation differ by more than 15 %. Only GPUs that are busy are compared.
  `PowerCapped` does not hold it back, because under load all GPUs of a node run at their power limit.
- **`PcieSlowGeneration`** is apart from `PcieDegraded`: an idle link lowers its generation, but never its
  width.
- **`PowerBrakeNode`** is the critical form of `PowerBrake`, for two GPUs or more of a node.
- **`SlurmDown`** needs Slurm's numbers of the last day: `absent()` would fire in every cluster without Slurm.
- **`GpuRecoveryAction` and `OnlySomeGpusWork`** have *Gpu* in their names because an Alertmanager gets alerts
  of other systems too.
"""

STATIC_FILES = (
    ("instances.yml", 3, "targets and request latency, as users have them"),
    ("gpu-sessions.yml", 7, "the metrics of family `sessions`, as users have them, with corrected twins"),
)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def rules_page() -> Iterator[str]:
    yield PAGE
    groups = shipped_groups()
    for group in groups:
        yield f"| `{group.name}.yml` | {len(group.rules)} | {group.title} |"
    recorded = rollup_file().count("- record: ")
    yield f"| `{ROLLUP_FILE}` | {recorded} | recording rules for [reports](reports.md) |"
    for name, count, title in STATIC_FILES:
        yield f"| `{name}` | {count} | {title} |"
    yield EDITING
    yield CHOICES
    yield "## Rules\n"
    yield "| alert | severity | for | meaning | next step | not sent while |\n|---|---|---|---|---|---|"
    for group in groups:
        if group.is_default:
            for rule in group.rules:
                check = rule.check
                duration = duration_text(round(check.for_seconds * 1000)) if check.for_seconds else ""
                inhibited = ", ".join(f"`{CHECKS[kind].alert}`" for kind in check.inhibited_by)
                severity = "none" if check is WATCHDOG else check.severity
                next_step = check.shown_step.replace("{gpu_list}", "GPU")
                yield (
                    f'| <a id="{rule.alert.lower()}"></a>`{rule.alert}` | {severity} | {duration} '
                    f"| {_cell(check.meaning)} | {_cell(next_step)} | {inhibited} |"
                )


def main() -> None:
    for path, text in deployed_files().items():
        (PROMETHEUS / path).parent.mkdir(parents=True, exist_ok=True)
        (PROMETHEUS / path).write_text(text)


if __name__ == "__main__":
    main()
