"""`gpuscope notify test`, and mistakes of the commands about alerts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuscope.cli import main
from tests.notify.timeline import running_sink


def test_a_test_message_to_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    with running_sink() as sink:
        assert main(["notify", "test", f"{sink.url}/hook"]) == 0
        assert main(["notify", "test", f"{sink.url}/hook", "--resolved"]) == 0
        sink.answers = [404]
        assert main(["notify", "test", f"{sink.url}/s3cret"]) == 1
    assert [json.loads(body)["status"] for _, _, body in sink.requests] == ["firing", "resolved", "firing"]
    captured = capsys.readouterr()
    assert captured.out == "notify/webhook[0]: accepted\n" * 2
    assert "HTTP status 404" in captured.err
    assert "s3cret" not in captured.err


def test_a_test_message_to_a_receiver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.yml"
    with running_sink() as sink:
        path.write_text(
            f"route: {{receiver: r}}\nreceivers: [{{name: r, webhook_configs: [{{url: '{sink.url}'}}]}}]\n"
        )
        assert main(["notify", "test", "r", "--alerting", str(path)]) == 0
        assert main(["notify", "test", "x", "--alerting", str(path)]) == 2
    assert len(sink.requests) == 1
    assert "there is no receiver 'x'; there are r" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["notify", "test", "oncall"], "is not a URL; give the file that has this receiver with --alerting"),
        (["notify", "test", "slack://x"], "must have the form slack://"),
        (["silence", "add", "--comment", "x"], "at least one matcher"),
        (["silence", "add", "a=b"], "--comment"),
        (["silence", "add", "a", "--comment", "x"], "'a' is not a matcher"),
        (["silence", "add", "a=b", "--comment", "x", "--for", "soon"], "--for: 'soon'"),
        (["silence", "add", "a=b", "--comment", "x", "--for", "2"], "'2' is a number without a unit"),
        (["silence", "add", "a=b", "--comment", "x", "--for", "99999999999d"], "longer than 292 years"),
        (["silence", "add", "a=~.*", "b=", "--comment", "x"], "would silence every alert"),
        (["silence", "list", "node"], "silence list: 'node' is not a matcher such as node=n3"),
        (["silence", "expire"], "give the id"),
    ],
)
def test_mistakes(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert reason in capsys.readouterr().err


def test_an_unreachable_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "--server", "http://127.0.0.1:1"]) == 4
    assert "is `gpuscope up` running?" in capsys.readouterr().err
