"""What the differential test asks: every endpoint with what belongs there, what does not, and what nobody asks.

The lists are by what they are about; those that take a `Day` are for servers filled with its data.
"""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import urlencode

from gpuscope.serve.api.embedded import METHODS
from tests.integration_api.raw import FORM, Asked, get, post
from tests.integration_api.servers import Day

V1 = "/api/v1"
LONG_REGEX = "|".join(f"name{number}" for number in range(4000))

TIMES = [
    "0", "1", "-1", "1.5", "1e3", "1.0005", "1.00049", "-1.5", "0x1p4", "1_000", " 1", "1 ", "+1", "1.", ".5",
    "1e400",
    "2023-11-14T22:13:20Z", "2023-11-14T22:13:20.9999Z", "2023-11-14T22:13:20,5Z",
    "2023-11-14T22:13:20+01:00", "2023-11-14T22:13:20-07:30", "2023-11-14T22:13:20", "2023-11-14 22:13:20Z",
    "2023-11-14", "2023-02-30T00:00:00Z", "2023-11-14t22:13:20z", "2023-11-14T22:13:60Z",
    "2023-11-14T24:00:00Z",
    "1969-12-31T23:59:59.5Z", "now", "x", "１", "1,5", "--1", "1s", "5m", "\x00", "é", "\"", "\\", "\n",
]  # fmt: skip
"""Not here: times after 2262, which overflow in Prometheus to other times, and none at all, which is now."""
ENDS_OF_TIME = ["-292273086-05-16T16:47:06Z", "292277025-08-18T07:12:54.999999999Z"]
DURATIONS = [
    "1", "60", "0.5", "1.9999", "1s", "1m", "1h30m", "1d", "1w", "1y", "500ms", "30m1h", "1h1h", "1m30", "m",
    "", " 1m",
    "1_0", "0", "0s", "-1", "-1m", "often", "1e2", "0x1p4", "1e300", "99999999999", "300y",
    "99999999999999999999y",
    "Inf", "+1", "1.5h", "１m",
]  # fmt: skip
NO_TIME = ("0", "0s", "-1")
"""As time-outs Prometheus answers them with one of two errors, whichever part of it looks first."""
LIMITS = ["", "0", "1", "2", "+2", "-1", "-0", "x", "1.5", "1e3", " 1", "1_0", "9223372036854775807",
          "9223372036854775808", "99999999999999999999999", "0x10", "007", "é"]  # fmt: skip
SELECTORS = [
    "watts", 'watts{node="a"}', '{node="a"}', '{node=~"a|b"}', "{}", "", " ", "watts{", "sum(watts)", "(watts)",
    "watts[5m]", "watts offset 5m", "watts @ 5", "-watts", "watts + watts", "1", '"watts"', '{"watts"}',
    '{__name__="watts"}',
    '{node=~".*"}', '{node=~".+"}', '{node!="a"}', '{node!~"a"}', 'watts{node=~"["}', 'watts{node="a",}',
    "watts{node}",
    '{__name__=~"watts|gauge"}', "watts # comment", "nothing", 'watts{a="\\xff"}', "watts{}", '{a=""}',
]  # fmt: skip
BAD_QUERIES = [
    "", " ", "watts[", "sum(watts) by", "no_such_function(watts)", "rate(watts)", "watts[1m]", '"x"', "sum(",
    ")", "1 +",
    "watts{node=~\"[\"}", "{}", "watts[0s]", "watts[5m", "watts offset", "watts @", "topk(watts)",
    "label_replace(watts)",
    "watts and 1", "1 == 2", "watts + on (a) group_left 1", "sum by (a", "\x00", "é", "watts é", "watts[5m:]",
    "1 bool",
    "limitk(1, watts)", "sort_by_label(watts, 'node')", "histogram_quantile(watts)", "watts[5m][5m]", "`x",
    "'x",
    "watts{node='a' or node='b'}", "absent()", "time(1)", "vector('a')", "clamp(watts, 1)", "rate(sum(watts))",
    "# only this",
    "count_values(1, watts)", "quantile('a', watts)", "-'a'", "'a' + 'b'", "watts > bool", "a.b", "5m",
    "watts[5]",
]  # fmt: skip


def queries(day: Day) -> list[Asked]:
    at = {"time": day.middle}
    found = [get(f"{V1}/query", {"query": "vector(1)", "time": text}) for text in TIMES]
    found += [
        get(f"{V1}/query", {"query": "watts", "timeout": text, **at})
        for text in DURATIONS
        if text not in NO_TIME
    ]
    found += [get(f"{V1}/query", {"query": "watts", "lookback_delta": text, **at}) for text in DURATIONS]
    found += [get(f"{V1}/query", {"query": "watts", "limit": text, **at}) for text in LIMITS]
    found += [post(f"{V1}/query", {"query": text, **at}) for text in BAD_QUERIES]
    found += [get(f"{V1}/query", {"query": text, **at, "stats": "all"}) for text in STATISTICS]
    found += [
        get(f"{V1}/query"),
        post(f"{V1}/query"),
        get(f"{V1}/query", [("query", "1"), ("query", "2"), *at.items()]),
        get(f"{V1}/query", [("time", "x"), ("limit", "x"), ("query", "(")]),
        get(f"{V1}/query", [("time", "x"), ("timeout", "x"), ("query", "(")]),
        get(f"{V1}/query", [("lookback_delta", "x"), ("query", "(")]),
        get(f"{V1}/query", {"query": "watts", **at, "stats": ""}),
        get(f"{V1}/query", {"query": "watts", **at, "stats": "yes"}),
        get(f"{V1}/query", {"Query": "watts", **at}),
        get(f"{V1}/query", "query=1%2b1&time=5"),
        get(f"{V1}/query", "query=1+1&time=5"),
        get(f"{V1}/query", "query=%zz&time=5"),
        get(f"{V1}/query", "query=x&time=%5"),
        get(f"{V1}/query", "query=1;time=5"),
        get(f"{V1}/query", "&&query=1&&time=5&"),
        get(f"{V1}/query", "query=1&time=5&=x&x"),
        get(f"{V1}/query", "query=%22%ff%22&time=5"),
        Asked("POST", f"{V1}/query?query=1&time=5", b"query=2", {"content-type": FORM}),
        Asked("POST", f"{V1}/query?query=1&time=5", b"query=2"),
        Asked("POST", f"{V1}/query?query=1&time=5", b""),
        Asked("POST", f"{V1}/query?query=1&time=5"),
        post(f"{V1}/query", b"query=2&time=5", "application/json"),
        post(f"{V1}/query", b"query=2&time=5", "text/plain"),
        post(f"{V1}/query", b"query=2&time=5", "APPLICATION/X-WWW-FORM-URLENCODED; charset=utf-8"),
        post(f"{V1}/query", b"query=2&time=5", "application/x-www-form-urlencoded-not"),
        post(f"{V1}/query", b'{"query": "2"}', "application/json"),
        post(f"{V1}/query", b"query=%zz&time=5"),
        post(f"{V1}/query", b"query=2&time=5", transfer_encoding="chunked"),
        post(f"{V1}/query", {"query": f'count(watts{{node=~"a|{LONG_REGEX}"}})', **at}),
        get(f"{V1}/query", {"query": f'count(watts{{node=~"a|{LONG_REGEX}"}})', **at}),
        get(f"{V1}/query", {"query": "watts", **at}, accept="text/html"),
        get(f"{V1}/query", {"query": "watts", **at}, accept="application/json;q=0.5, */*"),
        get(f"{V1}/query", {"query": "watts", **at}, accept="nonsense"),
    ]  # fmt: skip
    return found


STATISTICS = [
    "watts", "1", "'x'", "watts[10m]", "watts[10m:1m]", "watts[10m:]", "rate(watts[5m])",
    "sum(watts) + sum(gauge)",
    "watts @ 5", "watts @ end()", "rate(watts[5m] @ end())", "timestamp(watts)",
    "max_over_time(rate(watts[5m])[10m:1m])",
    "absent(nothing)", "watts offset 5m", "watts and gauge", "topk(2, watts)", "scalar(count(watts))",
    "nothing", "time()",
    "max_over_time(watts[10m:1m] @ end())", "sum_over_time(watts[10m] offset 3m)", "-watts", "(watts)",
    "watts > 100",
    "count_over_time({__name__=~'.+'}[1h])", "watts + watts", "predict_linear(watts[10m], 60)",
    "predict_linear(watts[10m] @ end(), 60)", "histogram_quantile(0.9, rate(wait_seconds_bucket[5m]))",
]  # fmt: skip


def ranges(day: Day) -> list[Asked]:
    usual = {"query": "watts", "start": day.start, "end": day.end, "step": 60}
    short = {"query": "vector(1)", "start": "10", "end": "20", "step": "5"}
    path = f"{V1}/query_range"
    found = [get(path, {**short, "start": text, "end": "1e4", "step": 1000}) for text in TIMES]
    found += [get(path, {**short, "start": "-1e4", "end": text, "step": 100000}) for text in TIMES]
    found += [get(path, {**short, "step": text}) for text in DURATIONS]
    found += [get(path, {**usual, "limit": text}) for text in LIMITS]
    found += [get(path, {**usual, "query": text}) for text in BAD_QUERIES]
    found += [get(path, {**usual, "query": text, "stats": "all"}) for text in STATISTICS]
    found += [get(path, {**short, "timeout": text}) for text in DURATIONS if text not in NO_TIME]
    found += [
        get(path),
        get(path, {**usual, "stats": "1"}),
        get(path, {**usual, "start": day.end, "end": day.start}),
        get(path, {**short, "start": "0", "end": "11000", "step": "1"}),
        get(path, {**short, "start": "0", "end": "11001", "step": "1"}),
        get(path, {**short, "start": "0", "end": "11000.999", "step": "1"}),
        get(path, {**short, "start": "0", "end": "1e9", "step": "1"}),
        get(path, {**short, "start": "5", "end": "5", "step": "1"}),
        get(path, {**short, "start": "5", "end": "4.9996", "step": "1"}),
        get(path, [("step", "x"), ("start", "x"), ("limit", "x")]),
        get(path, {"query": "(", "start": "1", "end": "x"}),
        get(path, {"query": "(", "start": "1", "end": "2", "step": "0"}),
        get(path, {"query": "(", "start": "2", "end": "1", "step": "x"}),
        get(path, {**usual, "query": "(", "timeout": "x", "lookback_delta": "x"}),
        get(path, {**usual, "query": "(", "lookback_delta": "x"}),
        post(path, usual),
        post(path, {**usual, "query": "watts[1m]"}),
    ]  # fmt: skip
    return found


def about_series(day: Day) -> list[Asked]:
    span = {"start": day.start, "end": day.end}
    paths = [f"{V1}/series", f"{V1}/labels", f"{V1}/label/node/values"]
    found = [get(path, {"match[]": text, **span}) for path in paths for text in SELECTORS]
    found += [get(path, {"match[]": "watts", "limit": text, **span}) for path in paths[1:] for text in LIMITS]
    found += [
        get(paths[0], {"match[]": "watts", "limit": text})
        for text in LIMITS
        if text not in ("1", "2", "+2", "007")
    ]
    found += [
        get(path, {"match[]": "watts", "start": text}) for path in paths for text in TIMES if len(text) < 12
    ]
    found += [
        get(path, {"match[]": "watts", "end": text}) for path in paths for text in ("x", "", "-1", "1e400")
    ]
    found += [
        get(path, {"match[]": "watts", "start": ENDS_OF_TIME[0], "end": ENDS_OF_TIME[1]}) for path in paths
    ]
    for path in paths:
        found += [
            get(path), get(path, span), get(path, "match[]=%zz"), get(path, "match[]=watts;x=y"),
            get(path, "match%5B%5D=watts&match[]=gauge"), get(path, {"match": "watts"}),
            get(path, {"match[]": ["{}", "("]}), get(path, {"match[]": ["watts", "("]}),
            get(path, {"match[]": "(", "start": "x"}), get(path, {"match[]": "(", "limit": "x"}),
            get(path, {"match[]": "watts", "start": day.end, "end": day.start}),
            get(path, {"match[]": ["watts", "gauge", "watts"], **span}),
            post(path, {"match[]": "watts", **span}),
            Asked("DELETE", f"{path}?match[]=watts"), Asked("PUT", path), Asked("PATCH", path),
        ]  # fmt: skip
    names = [
        "__name__", "le", "nothing", "a%20b", "U__a_2e_b", "U__", "U___", "U__a__b", "U__a_2_b", "U__a_zz_b",
        "U__a_110000_",
        "U__a_d800_", "U__node", "a.b", "%C3%A9", "%ff", "a-b", "1", "%00", "a%2Fb", "node%", "U__n_6f_de",
        "U__a_2e",
    ]  # fmt: skip
    found += [get(f"{V1}/label/{name}/values") for name in names if name != "node%"]
    found += [get(f"{V1}/label/node")]
    return found


def about_queries() -> list[Asked]:
    paths = (f"{V1}/format_query", f"{V1}/parse_query")
    found = [way(path, {"query": text}) for way in (get, post) for path in paths for text in BAD_QUERIES]
    for text in (*BAD_QUERIES, "watts", "1", "time()", "sum(rate(watts[5m]))"):
        found.append(get(f"{V1}/query_exemplars", {"query": text}))
    exemplars: list[dict[str, Any]] = [
        {"query": "watts", "start": "x"}, {"query": "watts", "end": "x"},
        {"query": "watts", "start": 5, "end": 4},
        {"query": "(", "start": 5, "end": 4}, {"query": "watts", "start": 4, "end": 4}, {},
    ]  # fmt: skip
    found += [way(f"{V1}/query_exemplars", one) for way in (get, post) for one in exemplars]
    return found


def about_rules() -> list[Asked]:
    path = f"{V1}/rules"
    parameters: list[Any] = [
        {}, {"type": "alert"}, {"type": "RECORD"}, {"type": "x"}, {"type": 'a"b'}, {"rule_name[]": "x"},
        {"rule_group[]": "x"},
        {"file[]": "x"}, {"match[]": "watts"}, {"match[]": "("}, {"match[]": "{}"}, {"exclude_alerts": "true"},
        {"exclude_alerts": "TRUE"}, {"exclude_alerts": "yes"}, {"exclude_alerts": ""}, {"exclude_alerts": "é"},
        {"group_limit": "1"}, {"group_limit": "0"}, {"group_limit": "-1"}, {"group_limit": "x"},
        {"group_limit": "2147483647"},
        {"group_limit": "2147483648"}, {"group_limit": ""}, {"group_next_token": "x"},
        {"group_next_token": "x", "group_limit": "1"},
        {"group_next_token": "x", "group_limit": "x"}, {"type": "x", "match[]": "("}, "match[]=%zz", "type=%zz",
        {"type": "x", "exclude_alerts": "x"}, {"unknown": "x"},
    ]  # fmt: skip
    return [get(path, one) for one in parameters]


def about_the_rest() -> list[Asked]:
    empty = [
        "alerts", "alertmanagers", "notifications", "status/walreplay", "scrape_pools", "targets", "metadata",
        "targets/metadata",
    ]  # fmt: skip
    found = [get(f"{V1}/{path}") for path in empty]
    found += [
        get(f"{V1}/{path}", {"limit": text})
        for path in ("metadata", "targets/metadata", "status/tsdb")
        for text in LIMITS
        if not (path.endswith("tsdb") and text in ("", "1", "2", "+2", "007", "9223372036854775807"))
    ]
    found += [get(f"{V1}/metadata", {"limit_per_metric": text}) for text in LIMITS]
    found += [get(f"{V1}/targets/metadata", {"match_target": text}) for text in SELECTORS]
    found += [get(f"{V1}/targets", {"state": text}) for text in ("active", "dropped", "any", "ANY", "x", "")]
    found += [get(f"{V1}/targets", {"scrapePool": "x"})]
    return found


def methods() -> list[Asked]:
    paths = [
        "query", "query_range", "query_exemplars", "format_query", "parse_query", "series", "labels",
        "label/node/values",
        "metadata", "targets", "targets/metadata", "scrape_pools", "rules", "alerts", "alertmanagers",
        "status/config",
        "status/flags", "status/buildinfo", "status/runtimeinfo", "status/tsdb", "status/walreplay",
        "notifications",
        "write", "nothing", "admin/tsdb/delete_series", "status", "status/nothing", "admin/tsdb/nothing", "",
        "x/y/z",
    ]  # fmt: skip
    ways = ("HEAD", "PUT", "DELETE", "PATCH", "OPTIONS")
    administration = "admin/tsdb/delete_series"  # PUT and DELETE there would change something
    found = [
        Asked(way, f"{V1}/{path}") for path in paths for way in ways if (path, way) != (administration, "PUT")
    ]
    found += [Asked("POST", f"{V1}/{path}") for path in paths
              if path not in ("query", "query_range", "series", "labels", "write", administration)]  # fmt: skip
    found += [get(f"{V1}/{path}") for path in ("nothing", "write", administration, "", "status", "x/y/z")]
    found += [
        Asked(way, path)
        for path in ("/api/v2/query", "/api/", "/api/v1/query/x", "/nothing")
        for way in ("GET", "POST")
    ]
    found += [Asked("POST", path) for path in ("/", "/-/healthy", "/-/ready", "/metrics")]
    found += [Asked("OPTIONS", f"{V1}/query", headers={"origin": "http://elsewhere.example"})]
    return found


def federation() -> list[Asked]:
    """Where there is nothing to send; test_scraped_differential has the rest."""
    parameters: list[Any] = [
        {}, {"match[]": "("}, {"match[]": ["nothing", "("]}, {"match[]": "nothing"}, "match[]=%zz",
        {"match[]": "{}"},
        {"match[]": "sum(x)"},
    ]  # fmt: skip
    return [*(get("/federate", one) for one in parameters), Asked("POST", "/federate")]


TAKEN = {
    "query": ["query", "time", "limit", "stats", "lookback_delta", "timeout"],
    "query_range": ["query", "start", "end", "step", "limit", "stats", "lookback_delta"],
    "query_exemplars": ["query", "start", "end"],
    "format_query": ["query"],
    "parse_query": ["query"],
    "series": ["match[]", "match[]", "start", "end", "limit"],
    "labels": ["match[]", "start", "end", "limit"],
    "label/node/values": ["match[]", "start", "end", "limit"],
    "rules": ["match[]", "type", "exclude_alerts", "group_limit", "group_next_token"],
    "metadata": ["metric", "limit", "limit_per_metric"],
    "targets/metadata": ["match_target", "metric", "limit"],
}


def soup(day: Day, seed: int, count: int) -> list[Asked]:
    """Parameters at random: mostly those the endpoint takes, mostly with a value that is right."""
    chance = random.Random(seed)
    values: dict[str, list[str]] = {
        "query": [*BAD_QUERIES, *STATISTICS, *["watts", "gauge"] * 20],
        "time": [*TIMES, *[str(day.middle)] * 20],
        "start": [*TIMES, *[str(day.start)] * 40], "end": [*TIMES, *[str(day.end)] * 40],
        "step": [*DURATIONS, *["60"] * 30], "timeout": [one for one in DURATIONS if one not in NO_TIME],
        "lookback_delta": DURATIONS, "limit": LIMITS, "limit_per_metric": LIMITS, "match[]": SELECTORS,
        "match_target": SELECTORS, "stats": ["all", "", "x"], "metric": ["watts", ""], "type": ["alert", "x"],
        "exclude_alerts": ["1", "x", "true"], "group_limit": ["1", "x", "-1"], "group_next_token": ["x"],
    }  # fmt: skip
    found = []
    for _ in range(count):
        path = chance.choice(list(TAKEN))
        names = [name for name in TAKEN[path] if chance.random() < 0.85 or (path, name) == ("query", "time")]
        names += chance.sample(list(values), chance.choice([0, 0, 1, 2]))
        chance.shuffle(names)
        pairs = [(name, chance.choice(values[name])) for name in names]
        half = chance.randrange(len(pairs) + 1) if f"{V1}/{path}" in METHODS else 0
        if half:
            target = f"{V1}/{path}?{urlencode(pairs[half:])}"
            found.append(Asked("POST", target, urlencode(pairs[:half]).encode(), {"content-type": FORM}))
        else:
            found.append(get(f"{V1}/{path}", pairs))
    return found
