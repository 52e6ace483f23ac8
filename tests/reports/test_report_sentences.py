"""Sentences of reports: the English text, and the key and arguments that other languages need."""

from __future__ import annotations

import re

import orjson
import pytest

from gpuscope.judge.reports.report_sentence import REPORT_TEXTS, ReportSentence, texts_without_formats
from gpuscope.serve.reports.report_answers import sentence_json


def test_a_sentence_is_its_english_text_and_keeps_key_and_arguments() -> None:
    sentence = ReportSentence("missing.late_at", hours=17.94, at=1_794_852_600.0)
    assert sentence == "the history begins 17.9 h after the start of the range, at 2026-11-16T18:10:00Z"
    assert sentence_json(sentence) == {
        "key": "missing.late_at",
        "args": {"hours": 17.94, "at": 1_794_852_600.0},
    }
    assert orjson.dumps([sentence]) == orjson.dumps([str(sentence)])


def test_hostile_arguments_are_text_and_no_template() -> None:
    sentence = ReportSentence("missing.node", node="{hours.__class__} {0}", hours=1.0)
    assert sentence.startswith("{hours.__class__} {0}: 1.0 GPU-hours lost")


def test_a_name_without_a_value_is_a_mistake_of_the_program() -> None:
    with pytest.raises(KeyError):
        ReportSentence("missing.late")


def test_texts_for_the_page_have_the_names_and_no_formats() -> None:
    texts = texts_without_formats()
    assert texts["missing.late"] == "the history begins {hours} h after the start of the range"
    for key, text in texts.items():
        named = re.findall(r"\{(\w+)(?::[^{}]*)?\}", REPORT_TEXTS[key])
        assert re.findall(r"\{([^{}]*)\}", text) == named, key
