# SPDX-License-Identifier: Apache-2.0
"""The load generator's two protocols: Triton on the real server, OpenAI on a small stand-in."""

import json
import runpy
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from load_generator import LoadPlan, OpenAIEndpoint, Query, TritonEndpoint, run
from specprefill.errors import SpecPrefillError

from tests.clients.conftest import CLIENTS
from tests.serving.conftest import metric

HELLO = Query("hello", 4, prompt="The capital of France is")
MODELS = ("specprefill", "ensemble")


def plan(**changes):
    return LoadPlan(**{"rate": 20.0, "warmup": 0, "mark_prompts": False, **changes})


class TestTriton:
    @pytest.mark.parametrize("model", MODELS)
    def test_what_a_request_measures(self, server, messages, model):
        chat = Query("chat", 3, messages=tuple(json.loads(messages)), settings={"keep_rate": 0.2})
        report = run(TritonEndpoint(server.grpc_url, model), [HELLO, chat], plan())
        assert report.counts()["ok"] == 2, report.results
        hello, sparse = report.results
        assert hello.text.startswith(" Paris")
        assert (hello.tokens, sparse.tokens) == (4, 3)
        assert 0 < hello.ttft_seconds < hello.latency_seconds
        assert sparse.statistics["active"] is True
        assert sparse.statistics["kept_tokens"] < sparse.statistics["prompt_tokens"]

    @pytest.mark.parametrize("model", MODELS)
    def test_a_timeout_stops_the_server(self, server, model):
        endless = Query("endless", 4000, prompt="1, 2, 3,", settings={"min_tokens": 4000})
        report = run(TritonEndpoint(server.grpc_url, model), [endless], plan(timeout_seconds=1.0))
        assert report.counts()["timeout"] == 1
        deadline = time.monotonic() + 10
        while metric(server, "specprefill_running") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert metric(server, "specprefill_running") == 0

    def test_refusals_are_counted_apart(self, server):
        slow = Query("slow", 12, prompt="1, 2, 3,", settings={"min_tokens": 12})
        burst = plan(rate=1000.0, requests=12)
        counts = run(TritonEndpoint(server.grpc_url), [slow], burst).counts()
        assert counts["busy"] > 0
        assert counts["ok"] >= 8  # four run, four wait
        assert counts["busy"] + counts["ok"] == 12

    def test_an_error_of_the_server(self, server):
        bad = Query("bad", 4, prompt="Hi", settings={"keep_rate": 1.5})
        (result,) = run(TritonEndpoint(server.grpc_url), [bad], plan()).results
        assert result.status == "error"
        assert "keep_rate: got 1.5" in result.message

    def test_unknown_settings_are_refused_before_anything_is_sent(self):
        bad = Query("bad", 4, prompt="Hi", settings={"keeprate": 1})
        with pytest.raises(SpecPrefillError, match="keeprate: unknown input"):
            run(TritonEndpoint("127.0.0.1:1"), [bad], plan())

    def test_a_server_that_is_not_there(self):
        (result,) = run(TritonEndpoint("127.0.0.1:1"), [HELLO], plan()).results
        assert result.status == "error"
        assert result.message.startswith("UNAVAILABLE")


class OpenAIStandIn(BaseHTTPRequestHandler):
    """Streams three pieces and their usage; the model's name decides what goes wrong."""

    requests = ()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).requests += ((self.path, body, self.headers["Authorization"]),)
        if body["model"] in ("429", "503", "400"):
            self.send_response(int(body["model"]))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({"error": {"message": "no"}}).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        chat = self.path.endswith("/chat/completions")
        events = [{"delta": {"role": "assistant", "content": ""}}] if chat else []
        events += [{"delta": {"content": t}} if chat else {"text": t} for t in "abc"]
        for choice in events:
            self.send({"choices": [{"index": 0, "finish_reason": None, **choice}]})
            time.sleep(0.02)
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        self.send({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, event):
        common = {"id": "x", "object": "chunk", "created": 0, "model": "m"}
        self.wfile.write(f"data: {json.dumps({**common, **event})}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def stand_in():
    OpenAIStandIn.requests = ()
    http = ThreadingHTTPServer(("127.0.0.1", 0), OpenAIStandIn)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}/v1"
    http.shutdown()
    http.server_close()


class TestOpenAI:
    def test_chat_and_raw_prompts(self, stand_in):
        message = {"role": "user", "content": "Hi"}
        chat = Query("chat", 9, messages=(message,), settings={"keep_rate": 0.5})
        report = run(OpenAIEndpoint(stand_in, "m", "secret"), [chat, HELLO], plan(rate=2.0))
        for result in report.results:
            assert (result.status, result.text, result.tokens) == ("ok", "abc", 5)
            assert 0 < result.ttft_seconds < result.latency_seconds
            assert result.statistics == {"prompt_tokens": 7}
        (path, body, key), (raw_path, raw, _) = OpenAIStandIn.requests
        assert (path, raw_path) == ("/v1/chat/completions", "/v1/completions")
        assert (body["messages"], body["max_tokens"], body["keep_rate"]) == ([message], 9, 0.5)
        assert raw["prompt"] == HELLO.prompt
        assert key == "Bearer secret"
        assert "secret" not in json.dumps(report.as_json())

    @pytest.mark.parametrize(
        ("model", "status"), [("429", "busy"), ("503", "busy"), ("400", "error")]
    )
    def test_refusals_and_errors(self, stand_in, model, status):
        (result,) = run(OpenAIEndpoint(stand_in, model), [HELLO], plan()).results
        assert result.status == status
        assert result.message.startswith(model)
        assert len(OpenAIStandIn.requests) == 1  # no hidden retries

    def test_a_server_that_is_not_there(self):
        (result,) = run(OpenAIEndpoint("http://127.0.0.1:1/v1"), [HELLO], plan()).results
        assert result.status == "error"


class TestCommand:
    """clients/qps.py."""

    def qps(self, *arguments):
        return runpy.run_path(str(CLIENTS / "qps.py"))["main"](arguments)

    def test_a_sweep_on_the_real_server(self, server, tmp_path, capsys):
        output = tmp_path / "out" / "qps.json"
        code = self.qps(
            *("--url", server.grpc_url, "--documents", "3", "--sentences", "3,12"),
            *("--max-tokens", "1", "--set", "keep_rate=0.2", "--set", "min_prompt_tokens=150"),
            *("--sweep", "2,100000", "--requests", "12", "--arrivals", "constant"),
            *("--max-seconds", "1", "--slo-ttft-p90", "60", "--output", str(output)),
        )
        told = capsys.readouterr()
        assert code == 0, told.out + told.err
        assert "highest rate that held: 2 requests per second" in told.out
        found = json.loads(output.read_text())
        assert found["highest_rate"] == 2
        slow, fast = found["runs"]
        assert slow["counts"]["ok"] == len(slow["requests"]) == 3  # 2 per second for 1 second
        assert fast["counts"]["busy"] > 0
        active = {request["statistics"]["active"] for request in slow["requests"]}
        assert active == {True, False}

    def test_one_rate_that_breaks_its_objective(self, stand_in, capsys):
        load = ("--openai", stand_in, "--documents", "2", "--sentences", "2", "--rate", "20")
        assert self.qps(*load) == 0
        assert self.qps(*load, "--slo-latency-p50", "0.001") == 1
        assert "broken: latency p50" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (("--rate", "0"), "rate: got 0.0; allowed: finite number greater than 0"),
            (("--sweep", "1,x"), "--sweep: got '1,x'; allowed: numbers"),
            (("--sweep", "4:2"), "rates: got 4:2; allowed: 0 < lowest < highest"),
            (("--rate", "1", "--set", "keeprate=1"), "'keeprate' is no public input"),
            (("--rate", "1", "--sentences", "a"), "--sentences: got 'a'"),
        ],
    )
    def test_bad_options(self, arguments, sentence, capsys):
        assert self.qps("--documents", "2", *arguments) == 1
        assert sentence in capsys.readouterr().err.replace("\n", " ")
