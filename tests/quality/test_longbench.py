# SPDX-License-Identifier: Apache-2.0
"""Records written here in LongBench's public form; none of its texts."""

import json

import pytest
from specprefill.errors import ConfigurationError
from specprefill.quality import longbench, metrics
from specprefill.quality.longbench import DATA_SETS, load_samples, truncate_middle

# Data sets and longest answers as published (arXiv 2308.14508).
PUBLISHED = {
    **dict.fromkeys(("narrativeqa", "qasper", "dureader", "samsum"), 128),
    **dict.fromkeys(("multifieldqa_en", "multifieldqa_zh", "trec", "lsht"), 64),
    **dict.fromkeys(("hotpotqa", "2wikimqa", "musique", "triviaqa"), 32),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "vcsum"), 512),
    **dict.fromkeys(("passage_count", "passage_retrieval_en", "passage_retrieval_zh"), 32),
    **dict.fromkeys(("lcc", "repobench-p"), 64),
}


def record(name, **changes):
    return {
        "input": "Where does the {night} train stop?",
        "context": "A {braced} text. The night train stops in Lucca.",
        "answers": ["Lucca"],
        "length": 9,
        "dataset": name,
        "language": "en",
        "all_classes": None,
        "_id": "abc",
        **changes,
    }


@pytest.fixture
def folder(tmp_path):
    def write(name, *records, suffix=""):
        lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records)
        (tmp_path / f"{name}{suffix}.jsonl").write_text(lines, encoding="utf-8")
        return tmp_path

    return write


def test_all_published_data_sets_are_known_with_their_answer_lengths():
    assert {name: data_set.max_tokens for name, data_set in DATA_SETS.items()} == PUBLISHED
    assert {data_set.metric for data_set in DATA_SETS.values()} <= set(metrics.METRICS)
    assert len({data_set.category for data_set in DATA_SETS.values()}) == 6


@pytest.mark.parametrize("name", DATA_SETS)
def test_every_template_holds_the_context_and_the_question_if_there_is_one(name):
    prompt = longbench.render(name, "<CONTEXT>", "<INPUT>")
    assert prompt.count("<CONTEXT>") == 1
    assert "{" not in prompt
    no_question = {"gov_report", "multi_news", "vcsum", "passage_count", "lcc"}
    assert ("<INPUT>" in prompt) == (name not in no_question)


def test_a_record_becomes_a_sample(folder):
    (sample,) = load_samples(folder("hotpotqa", record("hotpotqa")))
    assert sample.task == "hotpotqa"
    assert sample.name == "hotpotqa-abc"
    assert sample.answers == ("Lucca",)
    assert sample.chat
    assert "A {braced} text." in sample.prompt
    assert "the {night} train" in sample.prompt
    assert metrics.score(sample, "Lucca.") == 1.0


def test_few_shot_answers_end_with_their_line_and_have_no_chat_template(folder):
    labelled = record("trec", all_classes=["City", "River"], answers=["City"])
    (sample,) = load_samples(folder("trec", labelled))
    assert sample.messages is None
    assert sample.text == sample.prompt
    assert metrics.score(sample, "City\nQuestion: x\nType: River") == 1.0


def test_the_longbench_e_form_and_the_number_of_records(folder):
    path = folder("qasper", *(record("qasper", _id=str(i)) for i in range(5)), suffix="_e")
    assert [s.name for s in load_samples(path, per_set=2)] == ["qasper-0", "qasper-1"]


def test_the_benchmarks_own_templates_go_first(folder):
    path = folder("qasper", record("qasper"))
    (path / "dataset2prompt.json").write_text(json.dumps({"qasper": "T {context} Q {input}"}))
    (sample,) = load_samples(path)
    assert sample.prompt.startswith("T A {braced}")


def test_the_middle_is_dropped(tokenizer):
    text = " ".join(str(number) for number in range(500))
    short = truncate_middle(text, tokenizer, 100)
    assert len(tokenizer(short).input_ids) <= 100
    assert text.startswith(short[:20])
    assert text.endswith(short[-20:])
    assert truncate_middle("short", tokenizer, 100) == "short"


def test_long_prompts_keep_their_ends(folder, tokenizer):
    path = folder("qasper", record("qasper", context="first " + "middle " * 500 + "last"))
    (sample,) = load_samples(path, tokenizer=tokenizer, max_prompt_tokens=80)
    assert len(tokenizer(sample.prompt).input_ids) <= 80
    assert sample.prompt.endswith("Short answer:")


def test_bad_folders_and_records_are_told(folder, tmp_path):
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_samples(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="found: nothing"):
        load_samples(tmp_path)
    path = folder("qasper", record("qasper"))
    with pytest.raises(ConfigurationError, match="holds no trec; found: qasper"):
        load_samples(path, ("trec",))
    broken = record("lcc")
    del broken["answers"]
    with pytest.raises(ConfigurationError, match=r"lcc.jsonl:1: the record lacks 'answers'"):
        load_samples(folder("lcc", broken), ("lcc",))
    (tmp_path / "lsht.jsonl").write_text("{")
    with pytest.raises(ConfigurationError, match=r"lsht.jsonl:1: no JSON"):
        load_samples(tmp_path, ("lsht",))
