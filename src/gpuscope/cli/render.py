"""Write ready files: Prometheus, rules, Alertmanager, Grafana, compose, systemd, Helm values, firewall.

Without --out, a single file is printed on standard output.
"""

from __future__ import annotations

import argparse
import logging
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.cli.output import add_out, write_rendered
from gpuscope.cli.render_grafana import add_grafana, add_language, check_url, run_grafana
from gpuscope.cli.render_systemd import add_systemd_arguments, run_systemd

if TYPE_CHECKING:
    from gpuscope.serve.render.compose import ComposePlan

log = logging.getLogger("gpuscope")

SETTINGS = ()
USAGE = (
    "gpuscope render prometheus|rules|alertmanager|templates|grafana|compose|systemd|helm-values|firewall|"
    "counters [options]"
)

EPILOG = """examples:
  gpuscope render prometheus --nodes gpu1,gpu2 --slurm master --out /etc/prometheus
  gpuscope render grafana --page-url http://gpus.example.org:9470 --out /etc/grafana
  gpuscope render compose --gpu-access demo --out monitoring
  sudo gpuscope render systemd agent --install
  gpuscope render firewall --role node --from 10.0.0.0/16
`gpuscope render WHAT --help` lists the options of each.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, (summary, add_options, run_kind) in KINDS.items():
        kind = kinds.add_parser(
            name, prog=f"gpuscope render {name}", help=summary, description=summary, allow_abbrev=False
        )
        kind.set_defaults(run_kind=run_kind)
        add_options(kind)


def run(args: argparse.Namespace, settings: Settings) -> int:
    result: int = args.run_kind(args)
    return result


def _add_prometheus(parser: argparse.ArgumentParser) -> None:
    from gpuscope.serve.render import ports
    from gpuscope.serve.render.prometheus import GPU_JOBS

    parser.add_argument(
        "--nodes", metavar="A,B,C", required=True, help="hosts with GPUs, also as a hostlist: gpu[1-3]"
    )
    parser.add_argument(
        "--slurm", dest="slurm_host", metavar="HOST", default="", help="host of the Slurm exporter"
    )
    parser.add_argument(
        "--gpu-job", choices=GPU_JOBS, default=GPU_JOBS[0], help=f"job name of the GPU metrics ({GPU_JOBS[0]})"
    )
    parser.add_argument(
        "--no-node-exporter", action="store_true", help="no job `node`: the agent's family `host` replaces it"
    )
    parser.add_argument("--alertmanager", metavar="HOST", default="", help="host of the Alertmanager")
    parser.add_argument(
        "--interval",
        dest="scrape_every",  # `interval` is a setting of the agent
        metavar="15s",
        default="15s",
        help="scrape and evaluation interval (15s)",
    )
    parser.add_argument(
        "--external-label",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="label of everything this Prometheus sends on; repeatable (monitor=gpuscope)",
    )
    parser.add_argument(
        "--query-log", metavar="FILE", default="", help="Prometheus logs its queries to this file"
    )
    _add_page_url(parser)
    for flag, name, port in (
        ("--agent-port", "gpuscope agent", ports.AGENT_PORT),
        ("--node-exporter-port", "node exporter", ports.NODE_EXPORTER_PORT),
        ("--slurm-exporter-port", "Slurm exporter", ports.SLURM_EXPORTER_PORT),
        ("--alertmanager-port", "Alertmanager", ports.ALERTMANAGER_PORT),
    ):
        parser.add_argument(flag, metavar="PORT", default=str(port), help=f"port of the {name} ({port})")
    add_out(parser, required=False)


def _run_prometheus(args: argparse.Namespace) -> int:
    from gpuscope.serve.render.prometheus import (
        ExporterPorts,
        ScrapePlan,
        check_host_name,
        parse_host_names,
        prometheus_files,
        prometheus_text,
    )

    plan = ScrapePlan(
        nodes=parse_host_names(args.nodes, "--nodes"),
        slurm_host=check_host_name(args.slurm_host, "--slurm") if args.slurm_host else "",
        gpu_job=args.gpu_job,
        has_node_exporter=not args.no_node_exporter,
        alertmanager_host=check_host_name(args.alertmanager, "--alertmanager") if args.alertmanager else "",
        scrape_interval=_parse_interval(args.scrape_every),
        external_labels=_parse_labels(args.external_label) or {"monitor": "gpuscope"},
        query_log_file=args.query_log,
        page_url=_page_url(args),
        ports=ExporterPorts(
            _parse_port(args.agent_port, "--agent-port"),
            _parse_port(args.node_exporter_port, "--node-exporter-port"),
            _parse_port(args.slurm_exporter_port, "--slurm-exporter-port"),
            _parse_port(args.alertmanager_port, "--alertmanager-port"),
        ),
    )
    if args.out is None:
        print(prometheus_text(plan), end="")
    else:
        write_rendered(args, prometheus_files(plan))
    return 0


def _parse_port(text: str, flag: str) -> int:
    from gpuscope.base.setting_values import MAX_PORT

    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= MAX_PORT:
        raise UsageError(f"{flag}: {text!r} is not a port number (1-{MAX_PORT})")
    return int(text)


def _parse_interval(text: str) -> str:
    from gpuscope.base.setting_values import parse_argument, parse_interval

    seconds = parse_argument(parse_interval, text, "--interval", "15s")
    # Prometheus knows whole numbers with a unit only.
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds * 1000:.0f}ms"


def _parse_labels(texts: Sequence[str]) -> dict[str, str]:
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
            raise UsageError(f"--external-label: {text!r} is not NAME=VALUE with a label name")
        labels[name] = value
    return labels


def _add_page_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--page-url",
        metavar="URL",
        default="",
        help="gpuscope's page as users reach it, for runbook_url of alerts (none)",
    )


def _page_url(args: argparse.Namespace) -> str:
    return check_url(args.page_url, "--page-url") if args.page_url else ""


def _add_rules(parser: argparse.ArgumentParser) -> None:
    from gpuscope.serve.render.prometheus import METRICS

    parser.add_argument(
        "--for",
        dest="metrics",
        choices=METRICS,
        default=METRICS[0],
        help=f"metrics that are scraped ({METRICS[0]})",
    )
    _add_page_url(parser)
    add_out(parser, required=True)


def _run_rules(args: argparse.Namespace) -> int:
    from gpuscope.serve.render.prometheus import rule_files

    write_rendered(args, rule_files(args.metrics, _page_url(args)))
    return 0


def _add_alertmanager(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--webhook-url-file", metavar="FILE", default="", help="file with a webhook's URL")
    parser.add_argument("--slack-url-file", metavar="FILE", default="", help="file with a Slack webhook's URL")
    parser.add_argument("--slack-channel", metavar="NAME", default="", help="Slack channel")
    parser.add_argument("--email", metavar="ADDRESS", default="", help="recipient; needs --smtp-host")
    parser.add_argument(
        "--smtp-host", metavar="HOST:PORT", default="", help="mail server, for example mail:587"
    )
    parser.add_argument("--smtp-from", metavar="ADDRESS", default="", help="sender (default: the recipient)")
    parser.add_argument("--smtp-user", metavar="NAME", default="", help="user of the mail server")
    parser.add_argument("--smtp-password-file", metavar="FILE", default="", help="file with its password")
    add_out(parser, required=False)


def _run_alertmanager(args: argparse.Namespace) -> int:
    from dataclasses import fields

    from gpuscope.serve.render.prometheus import AlertmanagerPlan, alertmanager_file

    if bool(args.email) != bool(args.smtp_host):
        raise UsageError("--email and --smtp-host belong together: give both, or neither")
    if args.smtp_host:
        _check_smtp_host(args.smtp_host)
    file = alertmanager_file(
        AlertmanagerPlan(**{row.name: getattr(args, row.name) for row in fields(AlertmanagerPlan)})
    )
    if args.out is None:
        print(file.content, end="")
    else:
        write_rendered(args, [file])
    return 0


def _check_smtp_host(text: str) -> None:
    from gpuscope.serve.render.prometheus import check_host_name

    host, colon, port = text.rpartition(":")
    if not colon:
        raise UsageError(f"--smtp-host: {text!r} has no port; for example mail:587")
    check_host_name(host.removeprefix("[").removesuffix("]"), "--smtp-host")
    _parse_port(port, "--smtp-host")


def _add_compose(parser: argparse.ArgumentParser) -> None:
    from gpuscope.serve.render.compose import GPU_ACCESS

    parser.add_argument(
        "--nodes",
        metavar="A,B,C",
        default="",
        help="profile master: hosts with GPUs, also as a hostlist: gpu[1-3]",
    )
    parser.add_argument(
        "--slurm",
        dest="slurm_host",
        metavar="HOST",
        default="",
        help="profile master: host of the Slurm exporter",
    )
    parser.add_argument(
        "--instance", metavar="NAME", default="", help="name of this server in labels (default: the host name)"
    )
    parser.add_argument(
        "--gpu-access",
        choices=GPU_ACCESS,
        default=GPU_ACCESS[0],
        help="nvidia: NVIDIA Container Toolkit; devices: device files and driver library; demo: simulated",
    )
    parser.add_argument(
        "--gpu-count", metavar="N", default="", help="number of /dev/nvidiaN (default: those of this machine)"
    )
    add_language(parser)
    parser.add_argument(
        "--page-url",
        metavar="URL",
        default="",
        help="gpuscope's page, for links to it in Grafana and alerts (none)",
    )
    add_out(parser, required=True)


def _run_compose(args: argparse.Namespace) -> int:
    from gpuscope.serve.render import unwritable
    from gpuscope.serve.render.compose import (
        SETTINGS_FILE,
        ComposePlan,
        compose_files,
        count_gpu_devices,
        kept_files,
    )
    from gpuscope.serve.render.prometheus import check_host_name, parse_host_names

    here = check_host_name(args.instance or socket.gethostname(), "--instance")
    plan = ComposePlan(
        nodes=parse_host_names(args.nodes, "--nodes") if args.nodes else (here,),
        slurm_host=check_host_name(args.slurm_host, "--slurm") if args.slurm_host else "",
        instance=here,
        gpu_access=args.gpu_access,
        gpu_count=_parse_gpu_count(args.gpu_count) if args.gpu_count else max(1, count_gpu_devices()),
        language=args.language,
        page_url=_page_url(args),
    )
    try:
        (args.out / "secrets").mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(args.out, error) from None
    write_rendered(args, [*compose_files(plan), *kept_files(plan)])
    _warn_of_other_choice(args.out / SETTINGS_FILE, plan)
    print(f"start it: cd {args.out} && docker compose --profile single up -d   (or profile up, node, master)")
    return 0


def _warn_of_other_choice(settings_file: Path, plan: ComposePlan) -> None:
    from gpuscope.serve.render.compose import chosen_files

    wanted = f"COMPOSE_FILE={chosen_files(plan)}"
    lines = settings_file.read_text("utf-8", "replace").splitlines()
    present = next((line for line in lines if line.startswith("COMPOSE_FILE=")), "no COMPOSE_FILE")
    if present != wanted:
        log.warning(
            "%s was kept: it has %s; for this call's options change it to %s", settings_file, present, wanted
        )


def _parse_gpu_count(text: str) -> int:
    from gpuscope.serve.render.compose import MAX_GPU_DEVICES

    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= MAX_GPU_DEVICES:
        raise UsageError(f"--gpu-count: {text!r} is not a number from 1 to {MAX_GPU_DEVICES}")
    return int(text)


def _add_firewall(parser: argparse.ArgumentParser) -> None:
    from gpuscope.serve.render.ports import RENDERERS, ROLES

    parser.add_argument("--role", choices=ROLES, default=ROLES[0], help=f"role of the machine ({ROLES[0]})")
    parser.add_argument(
        "--from", dest="network", metavar="CIDR", default="10.0.0.0/8", help="who may connect (10.0.0.0/8)"
    )
    parser.add_argument(
        "--for", dest="program", choices=tuple(RENDERERS), help="only this firewall (default: all)"
    )


def _run_firewall(args: argparse.Namespace) -> int:
    from gpuscope.serve.render.ports import RENDERERS, firewall_lines, parse_network

    network = parse_network(args.network, "--from")
    for program in [args.program] if args.program else RENDERERS:
        print(f"# {program}, role {args.role}")
        print("\n".join(firewall_lines(program, args.role, network)))
    return 0


def _add_helm_values(parser: argparse.ArgumentParser) -> None:
    from gpuscope.serve.render.exporter_files import CHARTS, DEFAULT_FOLDER

    parser.add_argument(
        "--for", dest="chart", choices=CHARTS, required=True, help="chart with the node exporter"
    )
    parser.add_argument(
        "--textfile-folder",
        metavar="DIR",
        default=DEFAULT_FOLDER,
        help=f"folder of the node that gpuscope writes to ({DEFAULT_FOLDER})",
    )


def _run_helm_values(args: argparse.Namespace) -> int:
    from gpuscope.serve.render.exporter_files import helm_values

    folder = args.textfile_folder.rstrip("/")
    if not re.fullmatch(r"(/[\w.-]+)+", folder):
        raise UsageError(f"--textfile-folder: {args.textfile_folder!r} is not an absolute path of a folder")
    print(helm_values(args.chart, folder), end="")
    return 0


def _add_counters(parser: argparse.ArgumentParser) -> None:
    add_out(parser, required=True)


def _run_counters(args: argparse.Namespace) -> int:
    from gpuscope.serve.render.exporter_files import counters_files

    write_rendered(args, counters_files())
    return 0


def _add_templates(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def _run_templates(args: argparse.Namespace) -> int:
    from gpuscope.judge.notify.channels import default_texts

    print(default_texts())
    return 0


Kind = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]
KINDS: dict[str, Kind] = {
    "prometheus": ("prometheus.yml with target files and rules", _add_prometheus, _run_prometheus),
    "rules": ("the shipped Prometheus rule files", _add_rules, _run_rules),
    "alertmanager": ("alertmanager.yml with routes and inhibition", _add_alertmanager, _run_alertmanager),
    "templates": ("the default messages of all channels, as Go templates", _add_templates, _run_templates),
    "grafana": ("Grafana's dashboards and provisioning files", add_grafana, run_grafana),
    "compose": ("a compose project for one server, or a cluster's node and master", _add_compose, _run_compose),
    "systemd": ("systemd units; --install and --uninstall", add_systemd_arguments, run_systemd),
    "helm-values": (
        "values for charts whose node exporter reads text files",
        _add_helm_values,
        _run_helm_values,
    ),
    "firewall": ("commands that open a role's ports: ufw, firewalld, GCE", _add_firewall, _run_firewall),
    "counters": ("dcgm-exporter's counters files (CSV)", _add_counters, _run_counters),
}
