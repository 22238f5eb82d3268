# SPDX-License-Identifier: Apache-2.0
"""Open-loop load: requests arrive at a rate, whether or not earlier ones have been answered.

    report = run(TritonEndpoint("127.0.0.1:8001"), documents(20, (200,)), LoadPlan(rate=0.5))
    print(report.percentile("ttft", 90), report.counts())

`sweep` raises the rate until an `Objective` breaks.
"""

from load_generator.endpoint import Endpoint
from load_generator.load_plan import LoadPlan
from load_generator.objective import Objective
from load_generator.openai_endpoint import OpenAIEndpoint
from load_generator.query import Query
from load_generator.report import Report
from load_generator.request_result import RequestResult
from load_generator.run import run
from load_generator.sweep import Sweep, bisect, sweep
from load_generator.triton_endpoint import TritonEndpoint
from load_generator.workloads import documents, longbench, read_queries

__all__ = [
    "Endpoint",
    "LoadPlan",
    "Objective",
    "OpenAIEndpoint",
    "Query",
    "Report",
    "RequestResult",
    "Sweep",
    "TritonEndpoint",
    "bisect",
    "documents",
    "longbench",
    "read_queries",
    "run",
    "sweep",
]
