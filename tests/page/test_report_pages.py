"""The HTML of reports and receipts in a real Chromium, over simulated nodes whose truth is known."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.judge.reports.rates import parse_rates
from gpuscope.judge.reports.receipt.job_question import parse_job
from gpuscope.judge.reports.receipt.receipt_reader import read_receipt
from gpuscope.judge.reports.receipt.receipt_text import receipt_page
from gpuscope.judge.reports.usage.usage import parse_grouping
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.judge.reports.usage.usage_text import to_html
from gpuscope.serve.reports.report_answers import job_answer, usage_answer
from tests.reports.test_receipts import END_MS, UNEVEN, scheduler_series, trouble_series
from tests.reports.test_usage import SampleEngine

HERE = Path(__file__).parent
MODULES = HERE.parent.parent / "web/node_modules"


def write_pages(folder: Path) -> None:
    engine = SampleEngine([*replace(UNEVEN).simulate().series(), *scheduler_series(), *trouble_series()])
    rates = parse_rates("H100=2.5,*=1")
    start_ms = END_MS - 6 * 3_600_000
    question = UsageQuestion(parse_grouping("job"), start_ms, END_MS, rates, co2_grams_per_kwh=475.0)
    report = asyncio.run(usage_report(engine, question))
    receipt = asyncio.run(read_receipt(engine, parse_job("4711", start_ms, END_MS)))
    (folder / "usage.html").write_text(to_html(report, "usage"))
    (folder / "usage.json").write_text(json.dumps(usage_answer(report, "usage")))
    (folder / "receipt.html").write_text(receipt_page(receipt))
    (folder / "receipt.json").write_text(json.dumps(job_answer(receipt)))


def test_the_pages_in_chromium(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    node = shutil.which("node")
    if chromium is None or node is None or not (MODULES / "playwright-core").is_dir():
        pytest.skip("no Chromium, Node or page's test tools (npm ci in web/) on this machine")
    write_pages(tmp_path)
    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", str(HERE / "reports.test.mjs")],
        env={**os.environ, "GPUSCOPE_REPORTS": str(tmp_path), "GPUSCOPE_CHROMIUM": chromium},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
