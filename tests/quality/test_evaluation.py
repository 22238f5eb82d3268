# SPDX-License-Identifier: Apache-2.0
"""From the command to the page, on the tiny model; and through an OpenAI endpoint's form."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from specprefill.cli import app
from specprefill.errors import ConfigurationError, SpecPrefillError
from specprefill.quality import report
from specprefill.quality.evaluation import Options, evaluate, read_evaluation
from specprefill.quality.ruler import TASKS
from specprefill.settings import dump_settings
from typer.testing import CliRunner

RATES = ("keep_rate=0.2", "keep_rate=0.5")


def quiet(done, total, name):
    pass


@pytest.fixture(scope="module")
def evaluation(tiny_settings, tmp_path_factory):
    options = Options(
        variants=RATES,
        samples=1,
        lengths=(600, 700),
        classes=("niah_single", "common_words"),
        output=tmp_path_factory.mktemp("quality"),
    )
    return evaluate(tiny_settings, options, quiet)


def test_every_sample_meets_every_variant(evaluation):
    assert len(evaluation.outcomes) == 2 * 2 * (1 + len(RATES))
    assert {o.variant for o in evaluation.outcomes} == {"dense", *RATES}


def test_results_can_be_read_back(evaluation):
    again = read_evaluation(evaluation.path)
    assert again.outcomes == evaluation.outcomes
    assert again.machine == evaluation.machine
    assert "torch" in again.machine


def test_progress_goes_from_nothing_to_all(tiny_settings, tmp_path):
    seen = []
    options = Options(
        variants=RATES, samples=1, lengths=(600,), classes=("qa_table",), output=tmp_path
    )
    evaluate(tiny_settings, options, lambda done, total, _: seen.append((done, total)))
    assert seen[0] == (0, 3)
    assert seen[-1] == (3, 3)


def test_tables_report_every_class(evaluation):
    for title, (header, rows) in report.tables(evaluation).items():
        assert rows, title
        assert all(len(row) == len(header) for row in rows), title
    header, rows = report.score_rows(evaluation)
    assert header == ["variant", "niah_single", "common_words"]
    assert [row[0] for row in rows] == ["dense", *RATES]


def test_a_page_gets_its_generated_part_and_plots(evaluation, tmp_path):
    page = tmp_path / "page.md"
    name = evaluation.path.stem
    page.write_text(f"Before\n<!-- generated: {name} -->\nold\n<!-- end -->\nAfter\n")
    report.write_page(page, [evaluation])
    text = page.read_text()
    assert text.startswith("Before")
    assert text.endswith("After\n")
    assert "old" not in text
    assert "| keep_rate=0.5 |" in text
    for kind in ("time", "classes"):
        picture = tmp_path / "images" / f"quality-{name}-{kind}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert f"(images/{picture.name})" in text
    report.write_page(page, [evaluation])
    assert page.read_text() == text


def test_a_page_without_a_place_is_told(evaluation, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ConfigurationError, match="has no lines '<!-- generated"):
        report.write_page(page, [evaluation])


def test_the_command_prints_the_tables(tiny_settings, tmp_path):
    config = tmp_path / "tiny.yaml"
    dump_settings(tiny_settings, config)
    arguments = ["eval", "--config", str(config), "--samples", "1", "--lengths", "600"]
    arguments += ["--classes", "qa_prose", "--variants", RATES[0], "--output", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "qa_prose" in result.output
    assert "Score by class" in result.output
    (path,) = tmp_path.glob("*.json")
    assert len(json.loads(path.read_text())["outcomes"]) == 2


def test_longbench_in_process(tiny_settings, tmp_path):
    record = {
        "input": "Where does the night train stop?",
        "context": "The night train stops in Lucca. " * 40,
        "answers": ["Lucca"],
        "length": 240,
        "dataset": "hotpotqa",
        "language": "en",
        "all_classes": None,
        "_id": "1",
    }
    (tmp_path / "hotpotqa.jsonl").write_text(json.dumps(record))
    options = Options(
        suite="longbench",
        variants=RATES,
        data=tmp_path,
        output=tmp_path / "out",
        max_prompt_tokens=200,
    )
    evaluation = evaluate(tiny_settings, options, quiet)
    assert {o.task for o in evaluation.outcomes} == {"hotpotqa"}
    assert all(o.prompt_tokens < 300 for o in evaluation.outcomes)
    assert "hotpotqa" in report.markdown(evaluation)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(suite="poems"), "suite: got 'poems'; allowed: ruler, longbench"),
        (Options(suite="longbench"), "data: the suite longbench needs the folder"),
        (Options(classes=("poem",)), "allowed: niah_single"),
    ],
)
def test_bad_options_are_told(tiny_settings, options, message):
    with pytest.raises(ConfigurationError, match=message):
        evaluate(tiny_settings, options, quiet)


class Gateway(BaseHTTPRequestHandler):
    """Answers in our gateway's form; keeps what it was asked."""

    asked: list = []  # noqa: RUF012
    statistics = True

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, body))
        keep_rate = body["specprefill"].get("keep_rate", 0.2)
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None, "text": "12345"}
        choice["message"] = {"role": "assistant", "content": "12345"}
        answer = {"id": "1", "object": "x", "created": 1, "model": "m", "choices": [choice]}
        if self.statistics:
            answer["specprefill"] = {
                "active": keep_rate < 1,
                "reason": "because",
                "prompt_tokens": 1000,
                "kept_tokens": int(1000 * keep_rate),
                "draft_ms": 5.0,
                "target_prefill_ms": 50.0,
                "queue_ms": 0.0,
            }
        payload = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_):
        pass


@pytest.fixture
def gateway_url():
    Gateway.asked, Gateway.statistics = [], True
    server = HTTPServer(("127.0.0.1", 0), Gateway)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def endpoint_options(url, tmp_path, variants=RATES):
    return Options(
        variants=variants,
        samples=1,
        lengths=(600,),
        classes=("qa_config",),
        base_url=url,
        output=tmp_path,
    )


def test_an_endpoint_is_asked_densely_and_with_each_selection(tiny_settings, tmp_path, gateway_url):
    evaluation = evaluate(tiny_settings, endpoint_options(gateway_url, tmp_path), quiet)
    rates = [body["specprefill"]["keep_rate"] for _, body in Gateway.asked]
    assert rates == [1.0, 0.2, 0.5]
    assert all(path == "/v1/chat/completions" for path, _ in Gateway.asked)
    assert all(body["temperature"] == 0 for _, body in Gateway.asked)
    assert [o.kept_tokens for o in evaluation.outcomes] == [1000, 200, 500]
    assert evaluation.outcomes[1].first_divergence is None
    assert all(len(row) == len(h) for h, rows in report.tables(evaluation).values() for row in rows)


def test_raw_text_goes_to_completions(tiny_settings, tmp_path, gateway_url):
    record = {"input": "", "context": "x = 1\n", "answers": ["y"], "length": 3}
    record |= {"dataset": "lcc", "language": "python", "all_classes": None, "_id": "1"}
    (tmp_path / "lcc.jsonl").write_text(json.dumps(record))
    options = Options(
        suite="longbench",
        variants=RATES[:1],
        data=tmp_path,
        base_url=gateway_url,
        output=tmp_path,
    )
    evaluate(tiny_settings, options, quiet)
    path, body = Gateway.asked[0]
    assert path == "/v1/completions"
    assert "x = 1" in body["prompt"]
    assert body["max_tokens"] == 64


def test_what_an_endpoint_cannot_do_is_told(tiny_settings, tmp_path, gateway_url):
    drafts = endpoint_options(gateway_url, tmp_path, ("draft.layers=2",))
    with pytest.raises(ConfigurationError, match="a running server's is fixed"):
        evaluate(tiny_settings, drafts, quiet)
    Gateway.statistics = False
    with pytest.raises(SpecPrefillError, match="not our gateway"):
        evaluate(tiny_settings, endpoint_options(gateway_url, tmp_path), quiet)
    with pytest.raises(SpecPrefillError, match="Connection error"):
        evaluate(tiny_settings, endpoint_options("http://127.0.0.1:9/v1", tmp_path), quiet)


def test_all_classes_are_documented():
    from pathlib import Path

    page = (Path(__file__).resolve().parents[2] / "docs" / "quality.md").read_text()
    assert all(f"`{task}`" in page for task in TASKS)
