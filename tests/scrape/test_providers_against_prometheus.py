"""dns_sd_configs, http_sd_configs and kubernetes_sd_configs find the same targets as a real Prometheus.

Both ask the same DNS server, HTTP server and API server; `discoveredLabels` of /api/v1/targets are compared,
for targets that are scraped and for those that relabelling drops.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuscope.cli.wiring.own_metrics_thread import ScraperThread
from gpuscope.history.scrape.config import read_config
from gpuscope.history.scrape.job_options import DnsProviderConfig
from gpuscope.history.scrape.scraper import Scraper
from gpuscope.history.store import Store
from tests.engines import running_prometheus
from tests.scrape import fake_dns, kubernetes_scene
from tests.scrape.exporters import serving, text
from tests.scrape.fake_kubernetes import serving_kubernetes
from tests.scrape.provider_scene import dns_targets
from tests.scrape.test_against_prometheus import ask
from tests.waiting import wait_for

pytestmark = pytest.mark.engine("prometheus")

QUICK = ["--scrape.discovery-reload-interval=200ms"]
NEWER = "__meta_kubernetes_node_condition_"
"""Prometheus 3.5 does not have these labels yet."""
KEEP_PORT_9400 = [
    {"source_labels": ["__address__"], "regex": ".*:9400", "action": "keep"},
    {"action": "labelmap", "regex": "__meta_kubernetes_(.+)"},
]


@contextmanager
def scraping(document: dict[str, Any], folder: Path) -> Iterator[Scraper]:
    config = read_config(document, "prometheus.yml", folder)
    with (
        Store(folder / "data") as store,
        ScraperThread(lambda workers: Scraper(store, config, workers, min_update_seconds=0.0)) as thread,
    ):
        store.start()
        yield thread.scraper


def all_targets(answer: dict[str, Any]) -> list[str]:
    """Active and dropped ones, as sorted text."""
    found = []
    for target in answer["activeTargets"]:
        found.append({"labels": target["labels"], **target["discoveredLabels"]})
    found += [target["discoveredLabels"] for target in answer["droppedTargets"]]
    return sorted(
        json.dumps({name: value for name, value in one.items() if not name.startswith(NEWER)}, sort_keys=True)
        for one in found
    )


def assert_same_targets(
    document: dict[str, Any], folder: Path, at_least: int, *changes: Callable[[], None]
) -> None:
    """Also after each change."""
    with (
        running_prometheus(yaml.safe_dump(document), flags=QUICK) as url,
        scraping(document, folder) as scraper,
    ):

        def both() -> tuple[list[str], list[str]]:
            theirs = all_targets(ask(url, "targets", state="any"))
            return theirs, all_targets(scraper.targets_json("any"))

        def agree_on_new_targets() -> bool:
            theirs, ours = both()
            return theirs != before and theirs == ours

        before: list[str] = []
        wait_for(agree_on_new_targets, "the same targets", lambda: differences(*both()))
        before = both()[0]
        assert len(before) >= at_least
        for change in changes:
            change()
            wait_for(agree_on_new_targets, "the changed targets", lambda: differences(*both()))
            before = both()[0]


def differences(theirs: list[str], ours: list[str]) -> str:
    only_theirs = [one for one in theirs if one not in ours]
    only_ours = [one for one in ours if one not in theirs]
    return f"only Prometheus: {only_theirs}\nonly gpuscope: {only_ours}"


GROUPS = [
    {"targets": ["a:1", "b:2"], "labels": {"rack": "7", "__meta_datacenter": "x", "empty": ""}},
    {"targets": [], "labels": {"x": "y"}},
    {"targets": ["[::1]:3"]},
    {"labels": {"no": "targets"}},
    {"Targets": ["case:4"], "labels": None},
    {"targets": ["with/slash:5"]},
]


def test_http_targets_are_the_same(tmp_path: Path) -> None:
    pages = {"/sd": text(json.dumps(GROUPS), "application/json; charset=utf-8")}
    with serving(pages) as address:
        document = {
            "global": {"scrape_interval": "1h"},
            "scrape_configs": [
                {
                    "job_name": "h",
                    "http_sd_configs": [{"url": f"http://{address}/sd?x=1", "refresh_interval": "1s"}],
                    "relabel_configs": [
                        {"source_labels": ["__address__"], "regex": "b:2|with.*", "action": "drop"},
                        {"source_labels": ["__meta_url"], "target_label": "from"},
                    ],
                }
            ],
        }

        def change() -> None:
            pages["/sd"] = text(json.dumps([*GROUPS[:1], {"targets": ["new:6"]}]), "application/json")

        assert_same_targets(document, tmp_path, 4, change)


HTTP_ANSWERS = {
    "null": ("null", "application/json"),
    "empty": ("[]", "application/json"),
    "null group": ('[null, {"targets": ["a:1"]}]', "application/json"),
    "unknown key": ('[{"targets": ["a:1"], "lables": {}}]', "application/json"),
    "number": ('[{"targets": ["a:1"], "labels": {"n": 1}}]', "application/json"),
    "one string": ('[{"targets": "a:1"}]', "application/json"),
    "object": ('{"targets": ["a:1"]}', "application/json"),
    "not json": ("targets", "application/json"),
    "other type": ('[{"targets": ["a:1"]}]', "text/plain"),
    "no type": ('[{"targets": ["a:1"]}]', ""),
    "latin type": ('[{"targets": ["a:1"]}]', "application/json; charset=latin1"),
    "upper type": ('[{"targets": ["a:1"]}]', "Application/JSON; charset=UTF-8"),
    "utf8 label": ('[{"targets": ["a:1"], "labels": {"gpu.model": "é"}}]', "application/json"),
    "null label": ('[{"targets": ["a:1"], "labels": {"a": null}}]', "application/json"),
    "fine": ('[{"targets": ["a:1"]}]', "application/json"),
}


def test_the_same_http_answers_are_refused(tmp_path: Path) -> None:
    """One job per answer: it has targets in both, or in neither."""
    pages = {f"/{at}": text(*answer) for at, answer in enumerate(HTTP_ANSWERS.values())}
    with serving(pages) as address:
        document = {
            "global": {"scrape_interval": "1h"},
            "scrape_configs": [
                {"job_name": name, "http_sd_configs": [{"url": f"http://{address}/{at}"}]}
                for at, name in enumerate(HTTP_ANSWERS)
            ],
        }
        assert_same_targets(document, tmp_path, 4)


def kubernetes_job(name: str, address: str, role: str, **more: Any) -> dict[str, Any]:
    sd = {"role": role, "api_server": f"http://{address}", **more}
    return {"job_name": name, "kubernetes_sd_configs": [sd]}


def test_kubernetes_targets_are_the_same(tmp_path: Path) -> None:
    with serving_kubernetes() as server:
        kubernetes_scene.fill(server)
        at = server.address
        document = {
            "global": {"scrape_interval": "1h"},
            "scrape_configs": [
                kubernetes_job("pods", at, "pod"),
                kubernetes_job("nodes", at, "node"),
                kubernetes_job("slices", at, "endpointslice"),
                kubernetes_job("pods-of-ml", at, "pod", namespaces={"names": ["ml"]}),
                kubernetes_job("pods-with-nodes", at, "pod", attach_metadata={"node": True}),
                kubernetes_job("slices-with-nodes", at, "endpointslice", attach_metadata={"node": True})
                | {"relabel_configs": KEEP_PORT_9400},
            ],
        }

        def add_a_pod() -> None:
            server.put("pods", kubernetes_scene.pod("agent-c", "10.1.0.9"))
            server.put("nodes", kubernetes_scene.node("n2", "10.0.0.7", zone="c"))

        def move_the_service() -> None:
            server.remove("pods", "ml/agent-a")
            new = [kubernetes_scene.endpoint("10.1.0.9", ("Pod", "agent-c"), nodeName="n1")]
            server.put("endpointslices", kubernetes_scene.endpoint_slice("gpuscope-x1", "gpuscope", new))

        # In this order: Prometheus looks at the pods of a slice only when the slice changes.
        assert_same_targets(document, tmp_path, 25, add_a_pod, move_the_service)


ZONE: fake_dns.Zone = {
    ("_gpuscope._tcp.example.org.", fake_dns.SRV): [
        fake_dns.srv("Node1.Example.org", 9400),
        fake_dns.srv("n2.example.org", 0),
        fake_dns.srv(".", 7),
        fake_dns.cname("x.example.org"),
    ],
    ("short.example.org.", fake_dns.SRV): [fake_dns.srv("searched", 1)],
    ("many.example.org.", fake_dns.SRV): [fake_dns.srv(f"host{n}.example.org", n) for n in range(300)],
    ("host.example.org.", fake_dns.A): [fake_dns.cname("real.example.org"), fake_dns.a("192.0.2.7")],
    ("host.example.org.", fake_dns.AAAA): [fake_dns.aaaa("2001:db8::1"), fake_dns.aaaa("::ffff:192.0.2.1")],
    ("example.org.", fake_dns.MX): [fake_dns.mx("mail.example.org")],
    ("example.org.", fake_dns.NS): [fake_dns.ns("ns1.example.org"), fake_dns.ns("odd name(1).example.org")],
    ("broken.example.org.", fake_dns.A): fake_dns.SERVER_FAILURE,
}
DNS_CONFIGS = (
    DnsProviderConfig(
        ("_gpuscope._tcp.example.org", "short", "many.example.org.", "missing.example.org", "host.example.org")
    ),
    DnsProviderConfig(("host.example.org", "broken.example.org"), "A", 9400),
    DnsProviderConfig(("host.example.org",), "AAAA", 9400),
    DnsProviderConfig(("example.org",), "MX", 25),
    DnsProviderConfig(("example.org.",), "NS", 53),
)


def test_dns_targets_are_the_same(tmp_path: Path) -> None:
    """Prometheus reads /etc/resolv.conf and asks port 53: it runs in a mount namespace with another file."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("unshare: only root can give Prometheus a resolv.conf of its own")
    resolv_conf = tmp_path / "resolv.conf"
    with fake_dns.serving_dns("127.41.0.53", 53) as dns:
        dns.zone = ZONE
        resolv_conf.write_text(f"nameserver {dns.address}\nsearch nowhere.example example.org\n")
        jobs = [
            {
                "job_name": f"d{at}",
                "dns_sd_configs": [
                    {
                        "names": list(one.names),
                        "type": one.record_type,
                        "port": one.port,
                        "refresh_interval": "1s",
                    }
                ],
            }
            for at, one in enumerate(DNS_CONFIGS)
        ]
        document = yaml.safe_dump({"global": {"scrape_interval": "1h"}, "scrape_configs": jobs})
        mounting = f'mount --bind {resolv_conf} /etc/resolv.conf && exec "$@"'
        prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounting, "sh"]
        ours = sorted(
            json.dumps(labels, sort_keys=True)
            for at, one in enumerate(DNS_CONFIGS)
            for labels in dns_targets(one, resolv_conf, 53, f"d{at}")
        )
        assert len(ours) == 3 + 1 + 300 + 1 + 2 + 1 + 2
        with running_prometheus(document, flags=QUICK, prefix=prefix) as url:

            def theirs() -> list[str]:
                found = ask(url, "targets", state="any")["activeTargets"]
                return sorted(json.dumps(one["discoveredLabels"], sort_keys=True) for one in found)

            wait_for(lambda: theirs() == ours, "the same targets", lambda: differences(theirs(), ours))
