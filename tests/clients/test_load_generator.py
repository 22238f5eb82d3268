# SPDX-License-Identifier: Apache-2.0
"""The load generator against a server in the same event loop, whose behaviour is known."""

import itertools
import json
import math
import statistics

import pytest
from load_generator import (
    LoadPlan,
    Objective,
    Query,
    Report,
    RequestResult,
    bisect,
    documents,
    longbench,
    read_queries,
    run,
    sweep,
)
from load_generator.arrivals import arrival_times
from load_generator.endpoint import AnswerError
from specprefill.errors import SpecPrefillError

from tests.clients.fake_endpoint import FakeEndpoint

QUERIES = [Query(f"q{number}", 3, prompt=f"prompt {number}") for number in range(3)]


def plan(rate=50.0, **changes):
    return LoadPlan(**{"rate": rate, "requests": 12, "warmup": 0, **changes})


class TestArrivals:
    def test_constant(self):
        assert arrival_times("constant", 4, 3) == [0, 0.25, 0.5]

    def test_poisson_gaps_are_exponential_with_the_rate_as_mean(self):
        times = arrival_times("poisson", 2.0, 20001, seed=3)
        gaps = [b - a for a, b in itertools.pairwise(times)]
        assert statistics.mean(gaps) == pytest.approx(0.5, rel=0.03)
        assert statistics.stdev(gaps) == pytest.approx(0.5, rel=0.03)
        # Half of an exponential distribution lies below ln 2 of its mean.
        assert statistics.median(gaps) == pytest.approx(0.5 * math.log(2), rel=0.03)

    def test_the_seed_decides(self):
        assert arrival_times("poisson", 1, 9, 1) == arrival_times("poisson", 1, 9, 1)
        assert arrival_times("poisson", 1, 9, 1) != arrival_times("poisson", 1, 9, 2)


class TestRun:
    def test_requests_arrive_at_the_rate_although_the_server_is_slower(self):
        endpoint = FakeEndpoint(service_seconds=0.05)  # 20 per second
        report = run(endpoint, QUERIES, plan(rate=100.0, arrivals="constant"))
        sent_over = endpoint.arrived[-1] - endpoint.arrived[0]
        assert sent_over == pytest.approx(0.11, abs=0.08)
        # The last waits for the eleven before it: a closed loop would not have seen this.
        assert report.results[-1].latency_seconds > 0.4
        assert report.counts() == {"ok": 12, "timeout": 0, "busy": 0, "error": 0}

    def test_what_a_request_measures(self):
        report = run(FakeEndpoint(), QUERIES, plan(rate=20.0, requests=4))
        assert [result.query for result in report.results] == ["q0", "q1", "q2", "q0"]
        for result in report.results:
            assert (result.tokens, result.text) == (3, "012")
            assert result.statistics == {"kept_tokens": 5}
            assert 0.02 <= result.ttft_seconds <= result.latency_seconds

    def test_a_timeout_cancels_the_request(self):
        endpoint = FakeEndpoint(service_seconds=30)
        report = run(endpoint, QUERIES, plan(requests=2, timeout_seconds=0.1))
        assert report.counts()["timeout"] == 2
        assert endpoint.cancelled == 2
        assert report.results[0].ttft_seconds is None
        assert 0.1 <= report.results[0].latency_seconds < 5
        assert report.percentile("ttft", 50) == math.inf
        assert report.as_json()["percentiles"]["ttft"]["p50"] is None

    def test_refusals_are_no_timeouts(self):
        endpoint = FakeEndpoint(service_seconds=0.2, max_waiting=0)
        report = run(endpoint, QUERIES, plan(rate=1000.0, requests=3))
        assert report.counts() == {"ok": 1, "timeout": 0, "busy": 2, "error": 0}

    def test_it_stops_by_itself(self):
        report = run(FakeEndpoint(), QUERIES, plan(rate=5.0, requests=10**6, max_seconds=0.5))
        assert 1 <= len(report.results) < 20

    def test_no_two_prompts_start_alike(self):
        endpoint = FakeEndpoint(service_seconds=0)
        chat = Query("c", 1, messages=({"role": "user", "content": "prompt 0"},))
        run(endpoint, [QUERIES[0], chat], plan(rate=1000.0, requests=6, warmup=1))
        assert len({prompt.split("\n")[0] for prompt in endpoint.prompts}) == 7
        assert all(prompt.endswith("\nprompt 0") for prompt in endpoint.prompts)

    def test_prompts_stay_as_they_are_if_asked(self):
        endpoint = FakeEndpoint(service_seconds=0)
        run(endpoint, QUERIES[:1], plan(requests=2, rate=1000.0, mark_prompts=False))
        assert endpoint.prompts == ["prompt 0", "prompt 0"]

    def test_spans_of_characters_allow_no_mark(self):
        spans = Query("q", 1, prompt="Rule: no.", settings={"keep_spans": "[[0, 4]]"})
        with pytest.raises(SpecPrefillError, match=r"q: keep_spans .*--same-prompts"):
            run(FakeEndpoint(), [spans], plan())
        assert run(FakeEndpoint(), [spans], plan(mark_prompts=False)).counts()["ok"] == 12

    def test_warm_up_requests_are_not_reported(self):
        endpoint = FakeEndpoint(service_seconds=0)
        report = run(endpoint, QUERIES, plan(requests=2, rate=1000.0, warmup=2))
        assert (len(endpoint.prompts), len(report.results)) == (4, 2)

    def test_a_failing_warm_up_ends_the_run(self):
        class Broken(FakeEndpoint):
            async def ask(self, query):
                raise AnswerError("no such model")
                yield

        with pytest.raises(SpecPrefillError, match="q0, sent to warm up: no such model"):
            run(Broken(), QUERIES, plan(warmup=1))
        assert run(Broken(), QUERIES, plan(requests=2)).counts()["error"] == 2

    def test_results_are_told_as_they_come(self):
        told = []
        run(FakeEndpoint(), QUERIES, plan(rate=1000.0, requests=3), told.append)
        assert [result.index for result in told] == [0, 1, 2]

    def test_the_report_is_json(self):
        report = run(FakeEndpoint(), QUERIES, plan(rate=1000.0, requests=3))
        read = json.loads(json.dumps(report.as_json(), allow_nan=False))
        assert len(read["requests"]) == 3
        assert read["plan"]["rate"] == 1000.0

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("rate", 0.0),
            ("rate", math.inf),
            ("timeout_seconds", -1.0),
            ("requests", 0),
            ("warmup", -1),
            ("arrivals", "sometimes"),
        ],
    )
    def test_bad_plans(self, name, value):
        with pytest.raises(SpecPrefillError, match=f"{name}: got {value}|{name}: got '{value}'"):
            plan(**{name: value})

    def test_a_workload_must_hold_a_query(self):
        with pytest.raises(SpecPrefillError, match="no query"):
            run(FakeEndpoint(), [], plan())


def report_of(ttfts, rate=1.0):
    results = tuple(
        RequestResult(number, "q", "ok", 0.0, 0.0, ttft, ttft, 1)
        if ttft is not None
        else RequestResult(number, "q", "timeout", 0.0, 0.0, None, 9.0, 0)
        for number, ttft in enumerate(ttfts)
    )
    return Report({}, plan(rate=rate), results, 1.0)


class TestReport:
    def test_nearest_rank(self):
        report = report_of([float(n) for n in range(1, 11)])
        assert [report.percentile("ttft", p) for p in (50, 90, 99, 100)] == [5, 9, 10, 10]

    def test_an_answer_that_never_came_is_the_latest_of_all(self):
        report = report_of([1.0] * 8 + [None, None])
        assert report.percentile("ttft", 80) == 1.0
        assert report.percentile("ttft", 90) == math.inf

    def test_one_token_has_no_gap(self):
        assert math.isnan(report_of([1.0]).percentile("inter_token", 50))

    def test_gaps_are_between_the_tokens_after_the_first(self):
        result = RequestResult(0, "q", "ok", 0.0, 0.0, 1.0, 3.0, 5)
        assert result.seconds("inter_token") == 0.5


class TestObjective:
    def test_timeouts_up_to_the_tolerated_number(self):
        report = report_of([1.0] * 6 + [None] * 4)
        assert Objective(tolerated_timeouts=4).broken_by(report) is None
        assert "4 timeouts" in Objective(tolerated_timeouts=3).broken_by(report)

    def test_limits(self):
        report = report_of([1.0, 2.0])
        assert Objective({("ttft", 50): 1.0}).broken_by(report) is None
        assert "ttft p90 2.00 s" in Objective({("ttft", 90): 1.5}).broken_by(report)

    def test_what_was_not_measured_does_not_hold(self):
        assert Objective({("inter_token", 50): 9.0}).broken_by(report_of([1.0])) is not None

    def test_errors_always_break(self):
        failed = RequestResult(0, "q", "error", 0.0, 0.0, None, 1.0, 0, message="too long")
        report = Report({}, plan(), (failed,), 1.0)
        assert "too long" in Objective(tolerated_timeouts=9).broken_by(report)


class TestSweep:
    """A server that keeps 1 s up to 3.3 requests per second."""

    objective = Objective({("ttft", 90): 1.0})

    def setup_method(self):
        self.tried = []

    def run_at(self, rate):
        self.tried.append(rate)
        return report_of([0.5 if rate <= 3.3 else 2.0], rate)

    def test_a_list_ends_at_the_first_that_breaks(self):
        found = sweep(self.run_at, [1.0, 2.0, 4.0, 8.0], self.objective)
        assert self.tried == [1.0, 2.0, 4.0]
        assert found.highest_rate == 2.0
        runs = found.as_json()["runs"]
        assert [run["broken"] is None for run in runs] == [True, True, False]

    def test_doubling_then_halving_the_gap(self):
        found = bisect(self.run_at, 0.5, 64.0, self.objective)
        assert self.tried == [0.5, 1, 2, 4, 3, 3.5, 3.25]
        assert found.highest_rate == 3.25

    def test_a_range_that_holds_up_to_its_end(self):
        assert bisect(self.run_at, 1.0, 3.0, self.objective).highest_rate == 3.0
        assert self.tried == [1.0, 2.0, 3.0]

    def test_nothing_holds(self):
        found = bisect(self.run_at, 5.0, 9.0, self.objective)
        assert (self.tried, found.highest_rate) == ([5.0], None)
        assert found.as_json()["highest_rate"] is None

    def test_the_real_limit_of_a_server_is_found(self):
        # 50 per second at most; what comes faster waits longer and longer.
        def run_at(rate):
            return run(FakeEndpoint(0.02), QUERIES, plan(rate, arrivals="constant", requests=30))

        found = sweep(run_at, [20.0, 400.0], Objective({("latency", 90): 0.3}))
        assert found.highest_rate == 20.0
        assert len(found.reports) == 2


class TestWorkloads:
    def test_documents_differ_and_come_again_with_the_seed(self):
        queries = documents(6, (5, 20), seed=1)
        contents = [query.messages[0]["content"] for query in queries]
        assert len(set(contents)) == 6
        assert contents == [q.messages[0]["content"] for q in documents(6, (5, 20), seed=1)]
        lengths = {len(content) for content in contents}
        assert max(lengths) > 2 * min(lengths)

    def test_json_lines(self, tmp_path):
        path = tmp_path / "p.jsonl"
        lines = ['{"prompt": "a", "max_tokens": 5, "keep_rate": 0.5}', '"b"']
        path.write_text("\n".join(lines))
        first, second = (query.with_settings({"keep_rate": 0.1}) for query in read_queries(path))
        assert (first.prompt, first.max_tokens, first.settings) == ("a", 5, {"keep_rate": 0.5})
        assert (second.prompt, second.max_tokens, second.settings) == ("b", 64, {"keep_rate": 0.1})

    @pytest.fixture
    def folder(self, tmp_path):
        for name in ("hotpotqa", "gov_report", "trec"):
            record = {"context": f"{name} text", "answers": ["a"], "length": 2, "dataset": name}
            record |= {"language": "en", "all_classes": None, "_id": ""}
            lines = [json.dumps({**record, "input": f"question {n}"}) for n in range(4)]
            (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        return tmp_path

    def test_longbench_by_category(self, folder):
        queries = longbench(folder, ["multi-doc QA"], per_set=3)
        assert len(queries) == 3
        assert {query.max_tokens for query in queries} == {32}
        assert all("hotpotqa text" in query.messages[0]["content"] for query in queries)

    def test_few_shot_prompts_go_without_a_chat_template(self, folder):
        (query,) = longbench(folder, ["few-shot"], per_set=1)
        assert not query.messages
        assert query.prompt.endswith("question 0")

    def test_all_categories_are_mixed(self, folder):
        queries = longbench(folder)
        assert len(queries) == 12
        assert [query.max_tokens for query in queries] != sorted(q.max_tokens for q in queries)

    def test_bad_longbench(self, folder, tmp_path):
        with pytest.raises(SpecPrefillError, match="category: got 'poems'; allowed: single-doc"):
            longbench(folder, ["poems"])
        with pytest.raises(SpecPrefillError, match="no data set of code"):
            longbench(folder, ["code"])
        with pytest.raises(SpecPrefillError, match="does not exist"):
            longbench(tmp_path / "nowhere")
        with pytest.raises(SpecPrefillError, match="needs a tokenizer"):
            longbench(folder, max_prompt_tokens=100)
