"""The page in a real Chromium over a real demo server.

The tests themselves are JavaScript (*.test.mjs) and are run by Node's own runner; this file starts one server
for them and skips by name what the machine lacks.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines import running_prometheus
from tests.labs.debian_programs import LabUnavailable
from tests.labs.docker_lab import IMAGE_PYTHON, add_base_images, docker_lab
from tests.labs.gpuscope_images import build_role
from tests.labs.wheels import wheels_of_gpuscope
from tests.ports import free_port
from tests.waiting import wait_for
from tools import page

RunInChromium = Callable[..., None]
COMMAND = Path(sys.executable).parent / "gpuscope"


def _free_address() -> str:
    return f"127.0.0.1:{free_port()}"


@contextmanager
def _running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([str(COMMAND), *arguments], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def server(run_in_chromium: RunInChromium, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    address, data = _free_address(), str(tmp_path_factory.mktemp("page"))
    # Two nodes: one with a Slurm job, one with pods and MIG instances.
    options = ("--demo-nodes", "2", "--scenario", "one-works", "--data", data, "--listen", address)
    with _running("up", "--demo", *options) as process:
        _wait_until_ready(f"http://{address}/", process)
        _wait_for_history(f"http://{address}/")
        yield f"http://{address}/"


@pytest.fixture(scope="module")
def store_server(run_in_chromium: RunInChromium) -> Iterator[str]:
    agent, address = _free_address(), _free_address()
    scrape = f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - {{job_name: gpuscope, static_configs: [{{targets: ["{agent}"]}}]}}
"""
    with (
        running_prometheus(scrape) as engine,
        _running("agent", "--source", "demo", "--node", "lab-1", "--listen", agent),
        _running("server", "--store", engine, "--listen", address) as process,
    ):
        _wait_until_ready(f"http://{address}/", process)
        _wait_for_samples(f"http://{address}/")
        yield f"http://{address}/"


def _wait_for_history(url: str) -> None:
    """The page answers before the simulated history is complete."""

    def is_filled() -> bool:
        with urllib.request.urlopen(f"{url}metrics", timeout=30) as answer:
            return b"\ngpuscope_demo_history_ratio 1\n" in answer.read()

    wait_for(is_filled, "the simulated history")


def _wait_for_samples(url: str) -> None:
    """Until the engine has scraped often enough for a rate."""
    query = "api/v1/query?query=count_over_time(gpuscope_gpus_seen[1m])>3"

    def has_scraped() -> bool:
        with urllib.request.urlopen(url + query, timeout=30) as answer:
            return b'"value"' in answer.read()

    def is_in_picture() -> bool:
        with urllib.request.urlopen(f"{url}api/live", timeout=30) as answer:
            return bool(json.load(answer)["nodes"])

    wait_for(has_scraped, "Prometheus to scrape the agent")
    wait_for(is_in_picture, "the agent's node in the live picture")  # it may be older than the samples


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    def is_ready() -> bool:
        assert process.poll() is None, f"{process.args!r} ended"
        try:
            with urllib.request.urlopen(f"{url}-/ready", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    wait_for(is_ready, f"{url} to be ready")
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            built = b"<script" in answer.read()
    except urllib.error.HTTPError:
        built = False
    if not built:
        pytest.skip("the page is not built: npm run build in web/")
    # Tests of new sources against an old page fail for reasons that nobody finds in the sources.
    assert page.is_built(), "the page in the package is older than web/src: run tools/page.py"


def test_over_its_own_store(server: str, run_in_chromium: RunInChromium) -> None:
    """The tests of the files that `over-demo.mjs` names."""
    run_in_chromium("over-demo.mjs", GPUSCOPE_URL=server)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--demo-nodes", "1", "--scenario", "held-idle"), id="one node"),
        pytest.param((), id="make demo", marks=pytest.mark.slow),
    ],
)
def test_the_first_minute_of_a_demo(
    options: tuple[str, ...], run_in_chromium: RunInChromium, tmp_path: Path
) -> None:
    address = _free_address()
    with _running("up", "--demo", *options, "--data", str(tmp_path), "--listen", address) as process:
        _wait_until_ready(f"http://{address}/", process)
        run_in_chromium("first-minute.test.mjs", GPUSCOPE_URL=f"http://{address}/")


@pytest.fixture(scope="module")
def built_page() -> None:
    assert page.is_built(), "the page in the package is older than web/src: run tools/page.py"


def test_the_page_is_within_its_budget(built_page: None) -> None:
    """All views in four languages, compressed as a browser gets them."""
    files = [one for one in page.OUTPUT.rglob("*") if one.is_file() and not one.name.startswith(".")]
    assert sum(len(gzip.compress(one.read_bytes(), 9)) for one in files) <= 180_000


def test_pictures_of_the_main_views(built_page: None, run_in_chromium: RunInChromium) -> None:
    """Over recorded answers, without a server; GOLDEN_UPDATE=1 writes the pictures anew."""
    run_in_chromium("goldens.test.mjs")


def test_states_over_recorded_answers(built_page: None, run_in_chromium: RunInChromium) -> None:
    run_in_chromium("recorded-states.test.mjs")


@pytest.mark.slow
def test_every_view_at_every_width(server: str, run_in_chromium: RunInChromium) -> None:
    run_in_chromium("every-view.test.mjs", GPUSCOPE_URL=server)


def test_over_a_real_prometheus(store_server: str, run_in_chromium: RunInChromium) -> None:
    run_in_chromium("store.test.mjs", GPUSCOPE_URL=store_server)


def test_with_two_agents_of_which_one_is_killed(run_in_chromium: RunInChromium, tmp_path: Path) -> None:
    agents, address = [_free_address(), _free_address()], _free_address()
    options = ("--targets", ",".join(agents), "--scrape-interval", "1s", "--data", str(tmp_path))
    with (
        _running("agent", "--source", "demo", "--node", "lab-1", "--listen", agents[0]),
        _running(
            "agent", "--source", "demo", "--node", "lab-2", "--seed", "2", "--listen", agents[1]
        ) as victim,
        _running("server", *options, "--listen", address) as process,
    ):
        _wait_until_ready(f"http://{address}/", process)
        run_in_chromium(
            "agents.test.mjs", GPUSCOPE_URL=f"http://{address}/", GPUSCOPE_VICTIM_PID=str(victim.pid)
        )


@pytest.mark.slow
def test_over_the_image(run_in_chromium: RunInChromium, tmp_path: Path) -> None:
    """The page of the built image, with the image's own Python."""
    address, name = _free_address(), f"page-{os.getpid()}"
    try:
        with docker_lab(number=2) as lab:
            add_base_images(lab)
            build_role(lab, "gpuscope", wheels_of_gpuscope(tmp_path, IMAGE_PYTHON))
            # On the machine's loopback address, where no login is needed.
            container = f"run -d --name {name} --network host -e HEALTH_URL=http://{address}/-/healthy"
            command = f"up --demo --demo-nodes 2 --scenario one-works --listen {address}"
            lab.docker(*container.split(), "gpuscope:gpuscope", *command.split())
            assert f"Python {IMAGE_PYTHON}." in lab.docker("exec", name, "python3", "--version")
            wait_for(lambda: lab.inspect(name)["State"]["Health"]["Status"] == "healthy", "a healthy state")
            _wait_for_history(f"http://{address}/")
            run_in_chromium("over-demo.mjs", GPUSCOPE_URL=f"http://{address}/")
    except LabUnavailable as missing:
        pytest.skip(f"Docker: {missing}")
