"""Target providers in a configuration file: the defaults and the mistakes of each."""

from __future__ import annotations

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.history.scrape.job_options import (
    DnsProviderConfig,
    HttpProviderConfig,
    KubernetesProviderConfig,
)
from tests.scrape.provider_scene import read_job


def test_configurations_are_read_with_prometheus_defaults() -> None:
    _, providers = read_job(
        "dns_sd_configs: [{names: [a]}, {names: [b], type: a, port: 9400, refresh_interval: 5s}], "
        "http_sd_configs: [{url: 'http://user:secret@h:1/sd'}], "
        "kubernetes_sd_configs: [{role: pod, namespaces: {own_namespace: true, names: [ml]}, "
        "selectors: [{role: pod, label: app=x, field: spec.nodeName=n}], attach_metadata: {node: true}}]"
    )
    dns, other, http, kubernetes = providers
    assert dns == DnsProviderConfig(("a",), "SRV", 0, 30.0)
    assert other == DnsProviderConfig(("b",), "A", 9400, 5.0)
    assert isinstance(http, HttpProviderConfig)
    assert (http.url, http.refresh_seconds) == ("http://h:1/sd", 60.0)
    assert "secret" not in repr(http)
    assert isinstance(kubernetes, KubernetesProviderConfig)
    assert (kubernetes.namespaces, kubernetes.own_namespace, kubernetes.attach_node) == (("ml",), True, True)
    assert kubernetes.selector("pod").label == "app=x"


MISTAKES = {
    "dns_sd_configs: [{names: []}]": "names: at least one name",
    "dns_sd_configs: [{names: [a], type: TXT}]": "type: 'TXT' is not one of SRV",
    "dns_sd_configs: [{names: [a], type: A}]": "port: records of type A name no port",
    "dns_sd_configs: [{names: [a], refresh_interval: 0s}]": "refresh_interval: must be more than 0",
    "http_sd_configs: [{}]": "url: a URL is needed",
    "http_sd_configs: [{url: 'ftp://x'}]": "not an http:// or https:// URL",
    "http_sd_configs: [{url: 'http://x', interval: 1s}]": "unknown key",
    "kubernetes_sd_configs: [{}]": "role: '' is not one of pod, endpointslice, node",
    "kubernetes_sd_configs: [{role: ingress}]": "role: ingress is not supported",
    "kubernetes_sd_configs: [{role: pod, kubeconfig_file: x}]": "kubeconfig_file: is not supported",
    "kubernetes_sd_configs: [{role: pod, bearer_token: x}]": "bearer_token: set api_server too",
    "kubernetes_sd_configs: [{role: pod, selectors: [{role: service}]}]": "the role pod has selectors of pod",
    "kubernetes_sd_configs: [{role: node, selectors: [{role: node}, {role: node}]}]": "two selectors of node",
    "kubernetes_sd_configs: [{role: pod, api_server: 'http://x', namespaces: {own_namespace: true}}]": (
        "own_namespace: cannot be used with api_server"
    ),
}


@pytest.mark.parametrize("job", MISTAKES)
def test_a_mistake_names_its_key(job: str) -> None:
    with pytest.raises(UsageError, match=MISTAKES[job].split("(")[0]) as raised:
        read_job(job)
    assert "p.yml: job 'j'" in str(raised.value)
