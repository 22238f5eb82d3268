# SPDX-License-Identifier: Apache-2.0
"""The soak, for a minute."""

import pytest
from rich.progress import Progress
from specprefill.server import TritonServer

from tests.serving.conftest import settings
from tests.soak.soak import LIMITS, soak

SECONDS = 60


@pytest.mark.timeout(600)
def test_a_minute_above_capacity():
    chosen = settings(target=LIMITS, selection={"min_prompt_tokens": 256})
    with TritonServer(chosen) as server, Progress(disable=True) as progress:
        tally = soak(server, SECONDS, seed=1, progress=progress)
    assert tally.faults == []
    seen = {outcome for _, outcome in tally.outcomes}
    assert seen >= {"answer", "busy", "cancelled", "allowed:", "timeout_ms"}
