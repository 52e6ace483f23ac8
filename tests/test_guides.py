"""The guides: commands and links exist, the doctor is quoted word for word, translations keep step."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, env_name, setting_rows
from gpuscope.cli import COMMANDS, command_parser, load_command
from gpuscope.serve.stand_ins import load_stand_in
from tests.fast_yaml import read_yaml
from tests.recordings import recording
from tools.doctor_page import doctor_files, doctor_sentences

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "docs/guides"
LANGUAGES = ("ko", "ja", "zh")
TRANSLATED = (ROOT / "README.md", *(GUIDES / f"{name}.md" for name in ("one-server", "slurm", "kubernetes")))
TRANSLATIONS = [(page, page.with_suffix(f".{code}.md")) for page in TRANSLATED for code in LANGUAGES]
PAGES = sorted([*GUIDES.glob("*.md"), *ROOT.glob("README*.md"), ROOT / "docs/install.md"])
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHART = ROOT / "deploy/helm/gpuscope/values.yaml"
IMAGES = ("gpuscope:latest", "gpuscope:gpuscope")


def page_id(page: Path) -> str:
    return page.name


def shell_lines(text: str, blocks_of: re.Pattern[str] = SHELL) -> list[str]:
    """The commands of shell blocks: without comments, with continued lines joined."""
    blocks = "\n".join(blocks_of.findall(text)).replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in blocks.splitlines())
    return [line for line in lines if line]


def inline_commands(text: str) -> list[str]:
    without_blocks = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [code for code in re.findall(r"`([^`\n]+)`", without_blocks) if code.startswith("gpuscope ")]


def gpuscope_calls(lines: list[str]) -> Iterator[list[str]]:
    """The words after `gpuscope`, also behind sudo, a path, `kubectl exec … --` or `docker run … IMAGE`."""
    for line in lines:
        for part in re.split(r"\s(?:\||&&|;)\s|>", line):
            words = shlex.split(part)
            for at, word in enumerate(words):
                is_program = word.rsplit("/", 1)[-1] == "gpuscope" or word in IMAGES
                if is_program and words[at + 1 : at + 2] and words[at + 1] in COMMANDS:
                    yield words[at + 1 :]
                    break


def check_call(words: list[str], *, is_complete: bool = True) -> None:
    """Raises UsageError; a sentence may name a command without its arguments."""
    name, argv = words[0], [word for word in words[1:] if word != "…"]
    parser = command_parser(name)
    parse = getattr(load_command(name), "parse", None)
    try:
        args = parse(parser, argv) if parse is not None else parser.parse_args(argv)
    except UsageError as error:
        if is_complete or not str(error).startswith("missing: "):
            raise
        return
    for exporter, flags in getattr(args, "stand_ins", ()):
        load_stand_in(exporter).configure(Settings(), flags, {})


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_gpuscope_command_of_a_page_parses(page: Path) -> None:
    text = page.read_text()
    for words in gpuscope_calls(shell_lines(text)):
        check_call(words)
    for words in gpuscope_calls(inline_commands(text)):
        check_call(words, is_complete=False)


def test_commands_are_found_at_all() -> None:
    found = {words[0] for page in PAGES for words in gpuscope_calls(shell_lines(page.read_text()))}
    assert {"up", "agent", "server", "doctor", "render", "load", "store", "explain"} <= found
    with pytest.raises(UsageError, match="--nodes"):
        check_call(["render", "prometheus", "--nods", "a"])


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_setting_of_a_page_exists(page: Path) -> None:
    known = {env_name(row) for row in setting_rows()} | {"GPUSCOPE_TOKEN", "GPUSCOPE_IMAGE"}
    assert set(re.findall(r"\bGPUSCOPE_[A-Z_]+\b", page.read_text())) <= known


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", sorted(GUIDES.glob("kubernetes*.md")), ids=page_id)
def test_the_values_of_helm_commands_are_in_the_chart(page: Path) -> None:
    if not CHART.exists():
        pytest.skip("the Helm chart is not in this tree")
    values = read_yaml(CHART.read_text())
    for path in re.findall(r"--set '?([^=\s]+)=", page.read_text()):
        found = values
        for key in path.split("."):
            # A free-form map (labels) has keys that the defaults do not name.
            assert isinstance(found, dict), path
            if not found and path.split(".")[-2:-1] == ["labels"]:
                break
            assert key in found, path
            found = found[key]


def doctor_words(*verdicts: str) -> set[str]:
    return {
        sentence.what
        for path in doctor_files().values()
        for sentence in doctor_sentences(path)
        if not verdicts or sentence.verdict in verdicts
    }


def quoted_in_the_guide() -> list[str]:
    quoted, column = [], -1
    for line in (GUIDES / "troubleshooting.md").read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if "the doctor says" in cells:
            column = cells.index("the doctor says")
        elif not cells:
            column = -1
        elif column >= 0 and not set(cells[column]) <= {"-"}:
            quoted += re.findall(r"`([^`]+)`", cells[column].split("–")[0])
    return quoted


def test_the_guide_quotes_the_doctor_word_for_word() -> None:
    quoted, known = quoted_in_the_guide(), doctor_words()
    assert len(quoted) > 25
    assert [text for text in quoted if text not in known] == []


def test_every_problem_that_the_doctor_finds_has_a_symptom_in_the_guide() -> None:
    """Notes may be left out; a problem may not: a reader searches the guide for what he sees."""
    assert doctor_words("problem") - set(quoted_in_the_guide()) == set()


def test_the_alerts_that_the_guide_names_are_shipped() -> None:
    shipped = set(
        re.findall(
            r"alert: (\w+)",
            "".join(path.read_text() for path in (ROOT / "deploy/prometheus/rules").glob("*.yml")),
        )
    )
    guide = (GUIDES / "troubleshooting.md").read_text()
    named = set(re.findall(r"`((?:Gpu|GPU|Source|Host|Owner)[A-Za-z]+)`", guide))
    assert {"SourceDown", "GPUTextfileOld", "GpuMetricsMissing", "OwnerLabelsRenamed"} <= named
    assert named <= shipped


def words_of_command(line: str) -> list[str]:
    """Without what a reader fills in: `<gpu-pod>`, GPU-POD, a job's time stamp."""
    line = re.sub(r"collector-(<\w+>|…)", "collector", line.split("#")[0].split("|")[0])
    return [word for word in line.split() if not re.search(r"[<>…]|^[A-Z]+(-[A-Z]+)+$", word)]


def test_every_command_of_the_session_collectors_guide_is_answered() -> None:
    """That guide is one of the documents that gpuscope was made for."""
    seed = recording("seeds/003_*")
    blocks = re.findall(
        r"```bash\n(.*?)```", seed.read_text("utf-8", "replace").replace("\\\n", " "), re.DOTALL
    )
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    commands = [line for line in lines if re.match(r"(kubectl|helm|nvidia-smi|ls|cat) ", line)]
    assert len(commands) > 12
    assert unanswered(commands) == []


def test_commands_of_a_session_collector_are_answered() -> None:
    """What people type who have one already, in our own words."""
    collector = "gpu-session-metrics-collector"
    commands = [
        f"kubectl get cronjob {collector}",
        f"kubectl describe cronjob {collector} | tail",
        f"kubectl logs -l job-name={collector}-<number>",
        f"kubectl create job --from=cronjob/{collector} once",
        "kubectl exec -it <gpu-pod> -- nvidia-smi",
        "nvidia-smi -L | grep MIG",
        "nvidia-smi --query-gpu=mig.mode.current --format=csv,noheader",
        "nvidia-smi --query-compute-apps=pid,used_gpu_memory",
    ]
    assert unanswered(commands) == []
    assert unanswered(["kubectl get cronjob another-collector", "nvidia-smi topo -m"]) != []


def unanswered(commands: Sequence[str]) -> list[str]:
    pages = "\n".join((GUIDES / name).read_text() for name in ("troubleshooting.md", "kubernetes.md"))
    answered = [words_of_command(code) for code in re.findall(r"`([^`\n]+)`", pages)]
    answered += [words_of_command(line) for line in shell_lines(pages)]
    return [line for line in commands if not any(_is_answer(words_of_command(line), one) for one in answered)]


def _is_answer(asked: list[str], written: list[str]) -> bool:
    """The same program with the same first arguments; of nvidia-smi, the same query, whatever its columns."""
    if asked[0] == "nvidia-smi":
        return [word.split("=")[0] for word in written[:2]] == [word.split("=")[0] for word in asked[:2]]
    return written[:2] == asked[:2] and set(asked[:3]) <= set(written)


def headings(page: Path) -> list[int]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [len(found) for found in re.findall(r"^(#+) ", text, re.MULTILINE)]


def links(page: Path) -> list[str]:
    """Targets, without the language: a translation links to translations."""
    found = re.findall(r"\]\(([^)]+)\)", page.read_text())
    return sorted(re.sub(r"\.(ko|ja|zh)\.md", ".md", target) for target in found)


@pytest.mark.parametrize(("page", "other"), TRANSLATIONS, ids=[other.name for _, other in TRANSLATIONS])
def test_a_translation_keeps_step(page: Path, other: Path) -> None:
    """The same headings, commands, inline code and links; only the words differ."""
    assert other.exists(), f"{other.name} is missing"
    assert headings(other) == headings(page)
    assert shell_lines(other.read_text(), FENCED) == shell_lines(page.read_text(), FENCED)
    ours, theirs = (set(re.findall(r"`([^`\n]+)`", one.read_text())) for one in (page, other))
    assert theirs == ours
    assert links(other) == links(page)
    assert len(other.read_text().splitlines()) > 0.8 * len(page.read_text().splitlines())


@pytest.mark.parametrize(("page", "other"), TRANSLATIONS, ids=[other.name for _, other in TRANSLATIONS])
def test_a_translation_is_in_its_language(page: Path, other: Path) -> None:
    scripts = {"ko": r"[가-힣]", "ja": r"[ぁ-んァ-ン]", "zh": r"[\u4e00-\u9fff]"}
    code = other.suffixes[0].removeprefix(".")
    prose = re.sub(r"```.*?```|`[^`]*`", "", other.read_text(), flags=re.DOTALL)
    paragraphs = [part for part in prose.split("\n\n") if re.search(r"[A-Za-z]{3}.*\s[A-Za-z]{3}", part)]
    # A paragraph in English is one that nobody translated.
    assert [part for part in paragraphs if not re.search(scripts[code], part)] == []
