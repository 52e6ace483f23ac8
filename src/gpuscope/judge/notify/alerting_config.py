"""An `alertmanager.yml`, read strictly: every key is known, or the file is refused with line and column.

Input: a path. Output: an `AlertingConfig`; its `original` is the file with every secret as `<secret>`. A
UsageError has file, place and reason in one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.limits import Limits
from gpuscope.base.yaml_file import TextDumper, load_yaml
from gpuscope.judge.notify.alert_matchers import AlertMatcher, matchers_text, parse_matchers, sorted_matchers
from gpuscope.judge.notify.alert_routes import (
    AlertRoute,
    InhibitRule,
    Range,
    Ranges,
    TimeInterval,
    child_key,
    parse_clock_range,
    parse_days_of_month,
    parse_months,
    parse_weekdays,
    parse_years,
    parse_zone,
)
from gpuscope.judge.notify.channel import SECRET, Channel, ChannelConfig, finish
from gpuscope.judge.notify.channels import (
    ChannelGlobals,
    build_receiver,
    load_messages,
    read_channel_globals,
    read_channels,
    secret_keys,
)
from gpuscope.judge.notify.message_texts import Messages
from gpuscope.model.series import MatchOp

_UNCLOSED_CLASS = re.compile(r"\[(?![^\]]+\])")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
DEFAULT_RESOLVE_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class AlertReceiver:
    name: str
    channels: tuple[ChannelConfig, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class AlertingConfig:
    route: AlertRoute
    receivers: Mapping[str, AlertReceiver]
    inhibit_rules: tuple[InhibitRule, ...] = ()
    time_intervals: Mapping[str, tuple[TimeInterval, ...]] = field(default_factory=dict)
    messages: Messages = field(default_factory=load_messages)
    """Expands the texts of the receivers."""
    resolve_timeout: float = DEFAULT_RESOLVE_TIMEOUT
    original: str = ""
    """YAML that Alertmanager and amtool can read, without secrets."""


def load_alerting(path: Path, limits: Limits | None = None) -> AlertingConfig:
    document = load_yaml(path)
    table = ConfigMapping(document, str(path), path.parent)
    shared = table.table("global")
    resolve_timeout = shared.duration("resolve_timeout", DEFAULT_RESOLVE_TIMEOUT)
    defaults = read_channel_globals(shared)
    finish(shared)
    messages = load_messages(_template_files(table, path.parent), limits)
    receivers = _receivers(table, defaults, messages)
    intervals = _named_intervals(table)
    for key in ("tracing", "event_recorder"):
        table.raw(key)  # about Alertmanager's own process
    if not table.has("route"):
        table.fail("route", "is missing")
    route = _root_route(table.table("route"), receivers, intervals, messages)
    config = AlertingConfig(
        route=route,
        receivers=receivers,
        inhibit_rules=tuple(_inhibit_rule(entry) for entry in table.tables("inhibit_rules")),
        time_intervals=intervals,
        messages=messages,
        resolve_timeout=resolve_timeout,
        original=redact_alerting(document),
    )
    finish(table)
    return config


def build_channels(config: AlertingConfig) -> dict[str, list[Channel]]:
    """By receiver."""
    return {
        name: build_receiver(name, receiver.channels, config.messages)
        for name, receiver in config.receivers.items()
    }


def _receivers(table: ConfigMapping, defaults: ChannelGlobals, messages: Messages) -> dict[str, AlertReceiver]:
    receivers: dict[str, AlertReceiver] = {}
    for entry in table.tables("receivers"):
        name = entry.text("name")
        if not name:
            entry.fail("name", "is missing")
        if name in receivers:
            entry.fail("name", f"there are two receivers {name!r}")
        labels = entry.labels("labels")
        if labels.get("name", name) != name:
            entry.fail("labels", f"the label name of a receiver is its own name, {name!r}")
        channels = read_channels(entry, defaults, messages)
        receivers[name] = AlertReceiver(name, channels, tuple(sorted(labels.items())))
        finish(entry)
    return receivers


def _template_files(table: ConfigMapping, folder: Path) -> tuple[Path, ...]:
    paths: list[Path] = []
    for pattern in table.strings("templates"):
        try:
            if _UNCLOSED_CLASS.search(pattern):
                raise ValueError("a bracket is not closed")
            base = Path(pattern)
            matched = (
                sorted(Path(base.anchor).glob(str(base.relative_to(base.anchor))))
                if base.is_absolute()
                else (sorted(folder.glob(pattern)))
            )
        except (ValueError, NotImplementedError, OSError) as error:
            table.fail("templates", f"{pattern!r}: {error}")
        paths += [path for path in matched if path.is_file()]
    return tuple(paths)


def _named_intervals(table: ConfigMapping) -> dict[str, tuple[TimeInterval, ...]]:
    intervals: dict[str, tuple[TimeInterval, ...]] = {}
    for key in ("mute_time_intervals", "time_intervals"):
        for entry in table.tables(key):
            name = entry.text("name")
            if not name:
                entry.fail("name", "is missing")
            if name in intervals:
                entry.fail("name", f"there are two time intervals {name!r}")
            intervals[name] = tuple(_interval(part) for part in entry.tables("time_intervals"))
            finish(entry)
    return intervals


def _interval(table: ConfigMapping) -> TimeInterval:
    times: list[Range] = []
    for entry in table.tables("times"):
        try:
            times.append(parse_clock_range(entry.text("start_time"), entry.text("end_time")))
        except ValueError as error:
            entry.fail("start_time", error)
        finish(entry)
    interval = TimeInterval(
        times=tuple(times) if table.has("times") else None,
        weekdays=_ranges(table, "weekdays", parse_weekdays),
        days_of_month=_ranges(table, "days_of_month", parse_days_of_month),
        months=_ranges(table, "months", parse_months),
        years=_ranges(table, "years", parse_years),
        zone=table.parsed("location", parse_zone(""), lambda value: parse_zone(str(value))),
    )
    finish(table)
    return interval


def _ranges(table: ConfigMapping, key: str, parse: Callable[[str], Range]) -> Ranges:
    ranges = []
    for text in table.strings(key):
        try:
            ranges.append(parse(text))
        except ValueError as error:
            table.fail(key, error)
    return tuple(ranges) if table.has(key) else None


def read_matchers(table: ConfigMapping, *, prefix: str = "") -> tuple[AlertMatcher, ...]:
    """`match`, `match_re` and `matchers`, with a prefix for inhibition rules."""
    matchers: list[AlertMatcher] = []
    for key, op in ((f"{prefix}match", MatchOp.EQUAL), (f"{prefix}match_re", MatchOp.REGEX)):
        values = table.raw(key) or {}
        for name, value in table.labels(key).items():
            if op is MatchOp.REGEX and values[name] is None:
                table.fail(key, f"{name!r} has no regular expression")
            if _LABEL_NAME.fullmatch(name) is None:
                table.fail(key, f"{name!r} is not the name of a label")
            # Alertmanager anchors the expression again, which group keys show.
            pattern = f"^(?:{value})$" if op is MatchOp.REGEX else value
            try:
                matchers.append(AlertMatcher(name, op, pattern))
            except ValueError as error:
                table.fail(key, error)
    key = f"{prefix}matchers"
    for text in table.strings(key):
        try:
            matchers += parse_matchers(text)
        except ValueError as error:
            table.fail(key, f"{text!r}: {error}")
    return tuple(matchers)


_Known = Mapping[str, object]


def _root_route(table: ConfigMapping, receivers: _Known, intervals: _Known, messages: Messages) -> AlertRoute:
    for key in ("matchers", "match", "match_re", "continue", "mute_time_intervals", "active_time_intervals"):
        if table.has(key) and table.raw(key) not in ([], {}, "false", "no", "off"):
            table.fail(key, "the first route takes every alert at any time; put it into a route below routes")
    if not table.text("receiver"):
        table.fail("receiver", "is missing; the first route needs one")
    return _route(table, AlertRoute(receiver="", key="", id=""), receivers, intervals, messages, -1)


def _route(
    table: ConfigMapping,
    parent: AlertRoute,
    receivers: _Known,
    intervals: _Known,
    messages: Messages,
    position: int,
) -> AlertRoute:
    is_root = position < 0
    receiver = table.text("receiver") or parent.receiver
    if receiver not in receivers:
        table.fail("receiver", f"there is no receiver {receiver!r}; there are {', '.join(receivers) or 'none'}")
    matchers = sorted_matchers(read_matchers(table))
    group_by, by_all = _group_by(table, parent)
    key = matchers_text(matchers) if is_root else child_key(parent.key, matchers)
    route_id = key if is_root else f"{child_key(parent.id, matchers)}/{position}"
    own = AlertRoute(
        receiver=receiver,
        matchers=matchers,
        group_by=group_by,
        groups_by_all=by_all,
        group_wait=table.duration("group_wait", parent.group_wait),
        group_interval=_positive(table, "group_interval", parent.group_interval),
        repeat_interval=_positive(table, "repeat_interval", parent.repeat_interval),
        continues=table.switch("continue", False),
        mute_time_intervals=_interval_names(table, "mute_time_intervals", intervals),
        active_time_intervals=_interval_names(table, "active_time_intervals", intervals),
        labels=tuple(sorted({**dict(parent.labels), **_route_labels(table, messages)}.items())),
        key=key,
        id=route_id,
    )
    below = table.tables("routes")
    if None in (table.raw("routes") or ()):
        table.fail("routes", "an entry is empty")
    children = tuple(_route(route, own, receivers, intervals, messages, at) for at, route in enumerate(below))
    finish(table)
    return replace(own, routes=children)


def _route_labels(table: ConfigMapping, messages: Messages) -> dict[str, str]:
    labels = table.labels("labels")
    for name, value in labels.items():
        try:
            messages.check(value)
        except ValueError as error:
            table.fail("labels", f"{name}: {error}")
    return labels


def _group_by(table: ConfigMapping, parent: AlertRoute) -> tuple[frozenset[str], bool]:
    if not table.has("group_by"):
        table.raw("group_by")
        return parent.group_by, parent.groups_by_all
    names = table.strings("group_by")
    if set(names) == {"..."}:
        return frozenset(), True
    if len(set(names)) < len(names):
        table.fail("group_by", "a label is given twice")
    if "" in names:
        table.fail("group_by", "an empty name is not the name of a label")
    if "..." in names:
        table.fail("group_by", "'...' means all labels and stands alone")
    return frozenset(names), False


def _positive(table: ConfigMapping, key: str, default: float) -> float:
    seconds = table.duration(key, default)
    if seconds == 0:
        table.fail(key, "cannot be zero")
    return seconds


def _interval_names(table: ConfigMapping, key: str, intervals: _Known) -> tuple[str, ...]:
    names = table.strings(key)
    for name in names:
        if name not in intervals:
            table.fail(key, f"there is no time interval {name!r}; time_intervals defines them")
    return names


def _inhibit_rule(table: ConfigMapping) -> InhibitRule:
    rule = InhibitRule(
        source_matchers=read_matchers(table, prefix="source_"),
        target_matchers=read_matchers(table, prefix="target_"),
        equal=_equal(table),
        name=table.text("name"),
    )
    finish(table)
    return rule


def _equal(table: ConfigMapping) -> tuple[str, ...]:
    names = table.strings("equal")
    if "" in names:
        table.fail("equal", "an empty name is not the name of a label")
    return names


def redact_alerting(document: object) -> str:
    """YAML text of the document, with `<secret>` for every value that could grant access."""
    text: str = yaml.dump(
        _clean(document, secret_keys()), Dumper=TextDumper, sort_keys=False, allow_unicode=True
    )
    return text


def _clean(value: object, secrets: frozenset[str], key: str = "") -> object:
    if isinstance(value, dict):
        if key in ("headers", "http_headers", "proxy_connect_header"):
            return {
                name: SECRET if isinstance(inner, str) else _clean(inner, secrets, "secrets")
                for name, inner in value.items()
            }
        return {name: _clean(inner, secrets, str(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner, secrets, key if key == "secrets" else "") for inner in value]
    return SECRET if value is not None and key in secrets else value
