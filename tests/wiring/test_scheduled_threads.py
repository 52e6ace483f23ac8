"""The idle policy and the digest as `server` runs them: real samples, commands and mail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from zoneinfo import ZoneInfo

import cramjam
import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.idle_policy import IdlePolicyThread, PolicyTrust
from gpuscope.cli.wiring.scheduled_threads import DigestThread
from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.history.remote_write.codec import encode_labels, encode_samples
from gpuscope.history.remote_write.receiver import Received, Receiver
from gpuscope.history.scrape.target_appender import Report, TargetAppender
from gpuscope.history.store import Store
from gpuscope.history.store.tick import scrape_target_name
from gpuscope.judge.rules.alert_state import Alert
from gpuscope.model.series import Labels
from tests.notify.judged import judge_idle
from tests.notify.smtp_sink import running_smtp
from tests.reports.test_counter_growth import END_MS
from tests.reports.test_usage import FLEET, SampleEngine
from tests.rules.rig import HeldClock, KeptAlerts

STEP_MINUTES = 3
OWNER = {"kind": "job", "name": "17"}
NODE = {"job": "gpuscope", "instance": "n1:9400"}
PUSHED = {"job": "gpuscope", "instance": "n2"}


@dataclass
class Warned(KeptAlerts):
    """A channel that accepts every warning at once."""

    clock: HeldClock = field(default_factory=HeldClock)
    works: bool = True
    given: dict[Labels, float] = field(default_factory=dict)

    def take(self, alerts: Sequence[Alert]) -> None:
        super().take(alerts)
        if self.works:
            self.given |= {alert.labels: self.clock.now() for alert in alerts}

    def delivered_at(self, alerts: Iterable[Labels]) -> dict[Labels, float]:
        return {labels: self.given[labels] for labels in alerts if labels in self.given}


class PolicyServer:
    """A store that scrapes n1 and receives what others push, and the policy over it."""

    def __init__(self, folder: Path, policy: str, *, has_login: bool = True) -> None:
        (folder / "idle.yml").write_text(policy)
        self.folder = folder
        self.clock = HeldClock()
        self.store = Store(folder / "data", clock=self.clock)
        self.store.start()
        name = scrape_target_name(tuple(sorted(NODE.items())), "http://n1")
        self.scrape = TargetAppender(self.store, name, NODE)
        self.receiver = Receiver(self.store)
        self.channel = Warned(clock=self.clock)
        self.has_login = has_login
        self.target: Mapping[str, str] = NODE
        self.nodes = ["n1"]
        """Those of the job, as n1 reads them from Slurm; empty while it does not."""
        self.thread = self.new_thread()

    def new_thread(self) -> IdlePolicyThread:
        settings = Settings(idle_policy=str(self.folder / "idle.yml"), data=str(self.folder / "data"))
        trust = PolicyTrust("" if self.has_login else "no login", self.store.is_verified)
        evaluator = Engine(self.store)
        engine = EmbeddedEngine(self.store, evaluator)
        return IdlePolicyThread(
            settings,
            lambda: engine,
            self.channel,
            trust,
            lambda: judge_idle(engine, self.clock.now()),
            self.clock,
        )

    def minutes(self, count: int, idle: Callable[[float], float | None], push: Callable[[int], object]) -> None:
        """`idle` gives the idle minutes of n1's GPU at a minute; None while the agent does not know them."""
        for minute in range(0, count, STEP_MINUTES):
            self.clock.seconds += 60.0 * STEP_MINUTES
            seconds = idle(minute)
            samples = read_slurm(self.nodes, self.target) if self.nodes else {}
            samples |= {} if seconds is None else idle_job(60 * seconds, self.target)
            ids = self.scrape.series_ids([tuple(sorted(dict(labels).items())) for labels in samples])
            self.scrape.submit(self.clock.now_ms(), ids, list(samples.values()), Report(True, 0.1)).result()
            push(minute)
            self.thread.run_once()

    def push(
        self,
        seconds: float,
        node: Mapping[str, str] = PUSHED,
        *,
        token: str = "",
        ahead: int = 0,
        more: Mapping[Labels, float] | None = None,
    ) -> Received:
        at = self.clock.now_ms() + ahead
        samples = {**idle_job(seconds, node), **(more or {})}
        body = encode_samples((encode_labels(labels), at, value) for labels, value in samples.items())
        return self.receiver.take(bytes(cramjam.snappy.compress_raw(body)), "10.0.0.9", node=token)

    def rows(self) -> list[tuple[object, object]]:
        path = self.folder / "data/idle_policy_audit.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(row.get("result") or row["action"], row.get("reason", "")) for row in map(json.loads, lines)]

    def kinds(self) -> list[object]:
        return [kind for kind, _ in self.rows()]


def idle_job(seconds: float, node: Mapping[str, str]) -> dict[Labels, float]:
    """What the agent of a node says of the job."""
    gpu = {"gpu": "0", "uuid": f"GPU-{node['instance']}"}
    info = {"slurm_job": "17", "user": "ann", "account": "nlp", "partition": "gpu"}
    return {
        labels_of("gpuscope_owner_idle_seconds", node, **OWNER, **gpu): seconds,
        labels_of("gpuscope_owner_processes", node, **OWNER, **gpu): 1.0,
        labels_of("gpuscope_process_idle_seconds", node, slurm_job="17", pid="7", **gpu): seconds,
        labels_of("gpuscope_job_info", node, **info): 1.0,
        labels_of("gpuscope_gpu_info", node, node=node["instance"].partition(":")[0], **gpu): 1.0,
    }


def read_slurm(nodes: Iterable[str], reader: Mapping[str, str] = NODE) -> dict[Labels, float]:
    """What the agent that reads Slurm says of the job: one GPU on each of its nodes."""
    job = {"slurm_job": "17"}
    placed = {labels_of("gpuscope_slurm_job_node_info", reader, **job, node=node): 1.0 for node in nodes}
    record = {"user": "ann", "account": "nlp", "partition": "gpu"}
    return placed | {
        labels_of("gpuscope_slurm_up", reader): 1.0,
        labels_of("gpuscope_slurm_job_gpus", reader, **job): float(len(placed)),
        labels_of("gpuscope_slurm_job_info", reader, **job, **record): 1.0,
    }


def labels_of(name: str, target: Mapping[str, str], /, **more: str) -> Labels:
    return tuple(sorted({"__name__": name, **more, **target}.items()))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PolicyServer]:
    policy = f"command: [touch, '{tmp_path}/{{job}}-{{user}}']\ndry_run: false\n"
    found = PolicyServer(tmp_path, policy)
    yield found
    found.store.close()


def nothing(minute: int) -> None:
    """Nobody pushes."""


def test_a_real_command_runs_once_after_a_warning_and_the_grace(server: PolicyServer) -> None:
    server.minutes(16, lambda minute: 130 + minute, nothing)
    assert server.kinds() == ["warned"], "idle for 130 minutes at the first start"
    server.thread = server.new_thread()  # a restart
    server.minutes(20, lambda minute: 146 + minute, nothing)
    assert server.kinds() == ["warned", "run", "done"]
    assert (server.folder / "17-ann").exists()
    assert {dict(alert.labels)["warning"] for alert in server.channel.alerts} == {"2"}


def test_a_message_from_before_the_clock_was_set_back_is_no_warning(server: PolicyServer) -> None:
    server.minutes(3, lambda minute: 130, nothing)
    (labels,) = server.channel.given
    server.channel.works = False
    server.channel.given[labels] += 90 * 60.0  # of an earlier idle time, by a clock that was ahead
    server.minutes(60, lambda minute: 133 + minute, nothing)
    assert server.kinds() == ["warned", "withheld"]


def test_a_dry_run_runs_nothing(server: PolicyServer) -> None:
    (server.folder / "idle.yml").write_text(f"command: [touch, '{server.folder}/ran']")
    server.thread = server.new_thread()
    server.minutes(30, lambda minute: 130 + minute, nothing)
    assert server.kinds() == ["warned", "would_run"]
    assert not (server.folder / "ran").exists()


@pytest.mark.parametrize("command", ["['false']", "[no-such-command-here]"])
def test_a_command_that_fails_is_in_the_audit_log(server: PolicyServer, command: str) -> None:
    (server.folder / "idle.yml").write_text(f"command: {command}\ndry_run: false")
    server.thread = server.new_thread()
    server.minutes(20, lambda minute: 130 + minute, nothing)
    assert server.kinds() == ["warned", "run", "failed"]


def test_a_server_without_a_login_runs_nothing(server: PolicyServer, caplog: pytest.LogCaptureFixture) -> None:
    server.has_login = False
    server.thread = server.new_thread()
    server.minutes(60, lambda minute: 130 + minute, nothing)
    assert server.rows() == [("warned", ""), ("withheld", "no login")]
    assert "the idle policy runs no command: no login" in caplog.text


def test_a_write_token_cannot_end_the_work_of_others(server: PolicyServer) -> None:
    """Invented samples, and samples over those of the scraped node, up to ten minutes ahead."""

    def attack(minute: int) -> None:
        refused = server.push(8000 + 60 * minute, NODE, ahead=30_000).refused
        assert refused == {"scraped_here": 5}
        assert server.push(8000 + 60 * minute, {"job": "evil", "instance": "n1:9400"}).accepted == 5

    server.minutes(60, lambda minute: 0.0, attack)
    assert "run" not in server.kinds()
    server.minutes(60, lambda minute: None, attack)  # the agent's numbers are missing for an hour
    assert server.rows()[-1][0] == "withheld"
    assert "run" not in server.kinds()


def test_a_node_whose_token_is_bound_counts(server: PolicyServer) -> None:
    def push(minute: int) -> None:
        assert not server.push(60 * (130 + minute), token="n2").refused

    server.nodes = ["n1", "n2"]
    server.minutes(40, lambda minute: 130 + minute, push)
    assert server.kinds() == ["warned", "run", "done"]


def test_a_node_that_pushes_without_a_bound_token_protects_the_job(server: PolicyServer) -> None:
    server.nodes = ["n1", "n2"]
    server.minutes(40, lambda minute: 130 + minute, lambda minute: server.push(60 * (130 + minute)))
    assert server.kinds() == ["warned", "withheld"]
    assert "anybody with a write token may have sent the samples of n2/0" in str(server.rows()[1][1])


def test_equal_job_numbers_of_two_clusters_with_labels(server: PolicyServer) -> None:
    """Job 17 of the other cluster works; the command needs the name of the cluster."""
    server.target, west = {**NODE, "cluster": "east"}, {**PUSHED, "cluster": "west"}

    def push(minute: int) -> None:
        assert not server.push(0.0, west, token="n2", more=read_slurm(["n2"], west)).refused

    server.minutes(40, lambda minute: 130 + minute, push)
    assert server.kinds() == ["warned", "withheld"]
    assert "2 clusters report (label `cluster`)" in str(server.rows()[1][1])
    policy = (server.folder / "idle.yml").read_text()
    (server.folder / "idle.yml").write_text(policy.replace("{user}", "{cluster}"))
    server.thread = server.new_thread()
    server.minutes(40, lambda minute: 170 + minute, push)
    assert server.kinds()[2:] == ["warned", "run", "done"]
    assert (server.folder / "17-east").exists()


def test_equal_job_numbers_of_two_clusters_without_labels(server: PolicyServer) -> None:
    """Nobody knows which of them is meant."""
    other = read_slurm(["n2"], PUSHED)
    server.minutes(
        40,
        lambda minute: 130 + minute,
        lambda minute: server.push(60 * (130 + minute), token="n2", more=other),
    )
    assert server.kinds() == ["warned", "withheld"]
    reason = "n1:9400 and n2 read Slurm, and name different nodes of the job"
    assert str(server.rows()[1][1]).startswith(reason)


def test_a_node_that_stops_reporting_protects_the_job(server: PolicyServer) -> None:
    """Idle on one node, working on another whose agent stops."""

    def push(minute: int) -> None:
        if minute < 5:
            server.push(0.0, token="n2")

    server.nodes = ["n1", "n2"]
    server.minutes(60, lambda minute: 130 + minute, push)
    assert server.kinds() == ["warned", "withheld"]
    assert "n2/0" in str(server.rows()[1][1])


def test_root_of_a_node_cannot_end_the_job_of_another_node(server: PolicyServer) -> None:
    """Slurm has given the job one GPU of n3, which does not report. Root of n2 has a token bound to n2."""
    server.nodes = ["n3"]
    claim = {labels_of("gpuscope_gpu_info", PUSHED, node="n3", gpu="0"): 1.0}

    def push(minute: int) -> None:
        more = claim if minute >= 60 else {}
        assert not server.push(60 * (130 + minute), token="n2", more=more).refused

    server.minutes(60, lambda minute: None, push)
    assert server.kinds() == [], "nobody is accused either"
    server.minutes(120, lambda minute: None, push)
    assert server.kinds() == ["warned", "withheld"]
    assert "only n2 itself says that it is one of the job's nodes" in str(server.rows()[1][1])


@pytest.mark.parametrize("slurm_agents", ["", "slurm_agents: [n1]"])
def test_root_of_a_node_that_pretends_to_read_slurm_ends_nothing(
    server: PolicyServer, slurm_agents: str
) -> None:
    policy = (server.folder / "idle.yml").read_text()
    (server.folder / "idle.yml").write_text(policy + slurm_agents)
    server.thread = server.new_thread()
    server.nodes = ["n3"]

    def push(minute: int) -> None:
        assert not server.push(60 * (130 + minute), token="n2", more=read_slurm(["n2"], PUSHED)).refused

    server.minutes(60, lambda minute: None, push)
    assert "run" not in server.kinds()
    server.nodes = []  # the agent that reads Slurm stops
    server.minutes(60, lambda minute: None, push)
    assert ("run" in server.kinds()) is not bool(slurm_agents), "without the key every verified node is trusted"


def test_with_another_engine_only_the_operator_knows_who_writes(server: PolicyServer) -> None:
    settings = Settings(idle_policy=str(server.folder / "idle.yml"), data=str(server.folder / "data"))
    evaluator = Engine(server.store)

    def over_engine() -> IdlePolicyThread:
        engine = EmbeddedEngine(server.store, evaluator)
        return IdlePolicyThread(
            settings,
            lambda: engine,
            server.channel,
            PolicyTrust(),
            lambda: judge_idle(engine, server.clock.now()),
            server.clock,
        )

    server.thread = over_engine()
    server.minutes(30, lambda minute: 130 + minute, nothing)
    assert server.kinds() == ["warned", "withheld"]
    policy = (server.folder / "idle.yml").read_text()
    (server.folder / "idle.yml").write_text(policy + "trust_store: true\n")
    server.thread = over_engine()
    server.minutes(30, lambda minute: 160 + minute, nothing)
    assert server.kinds() == ["warned", "withheld", "warned", "run", "done"]


@dataclass
class JumpingClock(HeldClock):
    ahead: float = 0.0

    def now(self) -> float:
        return self.seconds + self.ahead


def digest(tmp_path: Path, port: int, now: float) -> tuple[DigestThread, JumpingClock]:
    settings = Settings(
        digest=f"mailto://127.0.0.1:{port}?to=admins@example.org&from=gpuscope@example.org&tls=no",
        digest_every="day",
        gpu_rate="2",
        data=str(tmp_path),
    )
    clock = JumpingClock(now)
    return DigestThread(settings, lambda: SampleEngine(FLEET), clock), clock


def test_a_mail_server_that_refuses_is_tried_again_later(tmp_path: Path) -> None:
    with running_smtp(refuse="MAIL") as broken:
        thread, clock = digest(tmp_path, broken.port, END_MS / 1000)
        thread.run_once()
        clock.seconds += 86_400
        assert not thread.run_once()
    with running_smtp() as sink:
        later, clock = digest(tmp_path, sink.port, clock.seconds)
        assert later.run_once(), "what was not sent is still due"


def test_a_digest_is_mailed_once_although_its_file_cannot_be_written(tmp_path: Path) -> None:
    with running_smtp() as sink:
        thread, clock = digest(tmp_path, sink.port, END_MS / 1000)
        thread.run_once()
        (tmp_path / "digest_sent.txt").unlink()
        (tmp_path / "digest_sent.txt").mkdir()  # nothing replaces a folder, as on a full disk
        clock.seconds += 86_400
        assert [thread.run_once() for _ in range(3)] == [True, False, False]
    assert len(sink.mails) == 1


def test_a_digest_is_mailed_once_with_text_and_page(tmp_path: Path) -> None:
    with running_smtp() as sink:
        thread, clock = digest(tmp_path, sink.port, END_MS / 1000)
        assert not thread.run_once(), "the first start waits for the next one"
        clock.seconds += 86_400
        assert thread.run_once()
        clock.seconds += 3600
        assert not thread.run_once()
    (kept,) = sink.mails
    assert (kept.sender, kept.recipients) == ("gpuscope@example.org", ["admins@example.org"])
    mail = message_from_bytes(kept.content, policy=default)
    assert mail["Subject"].startswith("GPU usage by user, day until 2026-")
    assert mail["To"] == "admins@example.org"
    assert isinstance(mail, EmailMessage)
    text, page = (str(part.get_content()) for part in mail.iter_parts() if isinstance(part, EmailMessage))
    assert "GPU-hours =" in text
    assert "cost: 2 per GPU-hour held" in text
    assert "<svg" in page


def test_a_digest_needs_a_mail_address(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--digest"):
        DigestThread(Settings(digest="ntfy://ntfy.sh/x", data=str(tmp_path)), lambda: SampleEngine(FLEET))


def test_a_clock_that_jumps_mails_nothing_until_it_is_settled(tmp_path: Path) -> None:
    with running_smtp() as sink:
        thread, clock = digest(tmp_path, sink.port, END_MS / 1000)
        thread.run_once()
        clock.ahead = 40 * 86_400.0
        assert not thread.run_once()
        clock.seconds += 80
        clock.ahead = 0.0
        assert not thread.run_once()
        clock.seconds += 86_400
        assert [thread.run_once() for _ in range(3)] == [True, False, False]
    assert len(sink.mails) == 1


def test_a_digest_that_an_older_version_sent_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "digest_sent.txt").write_text("2026-10-01T04:00:00Z\n")
    settings = Settings(
        digest="mailto://127.0.0.1:1?to=admins@example.org&from=gpuscope@example.org&tls=no",
        digest_every="month",
        data=str(tmp_path),
        time_zone=ZoneInfo("Europe/Berlin"),
    )
    clock = HeldClock(datetime(2026, 10, 25, 12, tzinfo=UTC).timestamp())
    thread = DigestThread(settings, lambda: SampleEngine(FLEET), clock)
    assert not thread.run_once()
