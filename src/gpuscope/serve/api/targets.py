"""Endpoints about scrape targets and their metadata.

`Targets` is the part of the scraper that the API reads; a server that does not scrape has `NoTargets`. Nodes
that send by remote write are listed beside the targets. The endpoints of rules and alerts are in `rule_routes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from gpuscope.history.promql import BadQueryError
from gpuscope.history.promql.ast_json import parse_selector
from gpuscope.history.store.value_matching import predicate
from gpuscope.model.series import Matcher
from gpuscope.serve.api.parameters import Parameters, bad
from gpuscope.serve.api.responses import data_answer
from gpuscope.serve.http.messages import Request, Response

if TYPE_CHECKING:
    from gpuscope.serve.api.embedded import EmbeddedApi

Metadata = Mapping[str, str]
"""`type`, `help` and `unit`."""


class Targets(Protocol):
    """The scraper, as the API sees it."""

    def targets_json(self, state: str) -> dict[str, Any]: ...

    def metadata(self) -> dict[str, list[dict[str, str]]]: ...

    def target_metadata(self) -> Iterable[tuple[Mapping[str, str], Mapping[str, Metadata]]]:
        """Each target's labels, and its metadata by metric."""
        ...

    def config_text(self) -> str: ...


PushedTargetsJson = Callable[[Collection[str]], Awaitable[list[dict[str, Any]]]]
"""The nodes that send by remote write, without those of these instances."""


async def no_pushed_targets(instances: Collection[str]) -> list[dict[str, Any]]:
    return []


class NoTargets:
    """For a server that scrapes nothing."""

    def targets_json(self, state: str) -> dict[str, Any]:
        return {"activeTargets": [], "droppedTargets": [], "droppedTargetCounts": {}}

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        return {}

    def target_metadata(self) -> Iterable[tuple[Mapping[str, str], Mapping[str, Metadata]]]:
        return ()

    def config_text(self) -> str:
        return ""


async def targets(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    state, pool = parameters.from_url("state").lower() or "any", parameters.from_url("scrapePool")
    found = api.targets.targets_json(state)
    if state != "dropped":
        instances = {one["labels"].get("instance", "") for one in found["activeTargets"]}
        found["activeTargets"] += await api.pushed_targets(instances)
    if state not in ("any", "active"):
        found["activeTargets"] = []
    if state not in ("any", "dropped"):
        found |= {"droppedTargets": [], "droppedTargetCounts": None}
    for kind in ("activeTargets", "droppedTargets"):
        kept = [one for one in found[kind] if not pool or one["scrapePool"] == pool]
        found[kind] = sorted(kept, key=lambda one: one["scrapePool"])
    return data_answer(found)


async def scrape_pools(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    found = api.targets.targets_json("any")
    active = {one["scrapePool"] for one in found["activeTargets"]}
    return data_answer({"scrapePools": sorted(active | found["droppedTargetCounts"].keys())})


async def metadata(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    limit, each = parameters.number("limit"), parameters.number("limit_per_metric")
    known, wanted = api.targets.metadata(), parameters.get("metric")
    names = sorted(known) if not wanted else [wanted] if wanted in known else []
    if limit >= 0:
        names = names[:limit]
    return data_answer({name: known[name][:each] if each > 0 else known[name] for name in names})


async def target_metadata(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    limit, matchers, metric = parameters.number("limit"), _target_matchers(parameters), parameters.get("metric")
    found: list[dict[str, Any]] = []
    for labels, known in api.targets.target_metadata():
        # Checked between targets only: the metadata of one target are not cut.
        if 0 <= limit <= len(found):
            break
        if not all(predicate(one)(labels.get(one.name, "")) for one in matchers):
            continue
        if not metric:
            found += [{"target": labels, "metric": name, **one} for name, one in known.items()]
        elif metric in known:
            found.append({"target": labels, **known[metric]})
    return data_answer(found)


def _target_matchers(parameters: Parameters) -> list[Matcher]:
    text = parameters.get("match_target")
    try:
        return parse_selector(text) if text else []
    except BadQueryError as error:
        raise bad("match_target", error) from None


async def notifications(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    return data_answer([])
