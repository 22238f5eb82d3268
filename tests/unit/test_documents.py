# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path

from specprefill.settings_reference import render

ROOT = Path(__file__).resolve().parents[2]


def test_the_configuration_reference_is_up_to_date():
    assert (ROOT / "docs" / "configuration.md").read_text() == render(), "run: make docs"


def test_links_between_pages_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_model_files_stay_a_few_lines():
    for model in (ROOT / "model_repository").glob("*/1/model.py"):
        assert len(model.read_text().splitlines()) < 8, model
