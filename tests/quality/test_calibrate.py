# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
import yaml
from specprefill import calibrate as calibration_module
from specprefill.calibrate import (
    HELD_OUT_TASKS,
    Calibration,
    calibrate,
    plot_heads,
    with_heads,
    write_heads,
)
from specprefill.cli import app
from specprefill.errors import ConfigurationError
from specprefill.quality.head_observer import HeadObserver
from specprefill.settings import SelectionSettings, Settings, dump_settings, load_settings
from typer.testing import CliRunner

LENGTH = 320
SETTINGS = SelectionSettings(chunk_size=32, query_window=4, pool_kernel=1, keep_rate=0.2)


def quiet(done, total, name):
    pass


def mask(*tokens):
    found = np.zeros(LENGTH, dtype=bool)
    found[list(tokens)] = True
    return found


def attention_to(*tokens):
    """Queries [heads, 4, d] and keys [heads, M, d]: head h looks at tokens[h] alone."""
    keys = torch.zeros(len(tokens), LENGTH, 4)
    for head, token in enumerate(tokens):
        keys[head, token] = 20.0
    return torch.ones(len(tokens), 4, 4), keys


def test_a_head_is_ranked_by_where_it_looks():
    observer = HeadObserver(SETTINGS, mask(100, 101), mask(*range(288, LENGTH)))
    observer.update(3, 0, *attention_to(100, 5, 300), scaling=1.0)
    # Nine chunks are ranked; a head that looks elsewhere sees all others alike, or as badly.
    assert observer.reciprocal_rank[3, 0] == 1.0
    assert observer.reciprocal_rank[3, 1] == pytest.approx(1 / 9)
    assert observer.recall[3, 0] == 1.0
    # A protected chunk has no rank: attention to it says nothing.
    assert observer.reciprocal_rank[3, 2] == pytest.approx(1 / 9)


def test_a_sink_beside_the_evidence_does_not_make_a_head_good():
    observer = HeadObserver(SETTINGS, mask(*range(20, 32)), mask(0, 1, 2, 3))
    observer.update(0, 0, *attention_to(0), scaling=1.0)
    assert observer.reciprocal_rank[0, 0] == pytest.approx(1 / 10)


def test_recall_counts_evidence_that_a_border_cuts():
    observer = HeadObserver(
        SETTINGS.for_request({"keep_rate": 0.1}), mask(127, 128, 129, 130), mask()
    )
    observer.update(0, 0, *attention_to(126), scaling=1.0)
    assert observer.recall[0, 0] == pytest.approx(0.25)
    assert observer.reciprocal_rank[0, 0] == 1.0


def test_look_ahead_steps_and_other_layers_are_left_out():
    observer = HeadObserver(SETTINGS, mask(100), mask(), score_layers=(1, 2))
    observer.update(1, 1, *attention_to(100), scaling=1.0)
    observer.update(0, 0, *attention_to(100), scaling=1.0)
    assert observer.reciprocal_rank == {}


@pytest.fixture(scope="module")
def found(tiny_settings):
    return calibrate(tiny_settings, quiet, heads=5, samples=1, lengths=(700,))


def test_the_best_heads_of_every_layer_and_head_are_chosen(found):
    assert len(found.reciprocal_rank) == 4 * 6
    best = sorted(found.reciprocal_rank.values(), reverse=True)[:5]
    assert sorted((found.reciprocal_rank[h] for h in found.heads), reverse=True) == best
    assert set(HELD_OUT_TASKS) < set(found.before) == set(found.after)
    assert found.before != found.after


def test_a_planted_retrieval_head_is_found(tiny_settings, monkeypatch):
    """One head is made to rank the answer's chunk first, in every prompt."""
    update = HeadObserver.update

    def planted(self, layer, step, queries, keys, scaling):
        update(self, layer, step, queries, keys, scaling)
        if layer == 2:
            self.reciprocal_rank[2, 4] = 1.01

    monkeypatch.setattr(HeadObserver, "update", planted)
    found = calibrate(tiny_settings, quiet, heads=1, samples=1, lengths=(700,))
    assert found.heads == ((2, 4),)


def test_only_configured_layers_are_looked_at_unless_told(tiny_settings):
    values = {**tiny_settings.draft.model_dump(), "score_layers": (1, 2)}
    settings = tiny_settings.model_copy(
        update={"draft": type(tiny_settings.draft).model_validate(values)}
    )
    some = calibrate(settings, quiet, heads=3, samples=1, lengths=(700,))
    assert {layer for layer, _ in some.reciprocal_rank} == {1, 2}
    everything = calibrate(settings, quiet, heads=3, samples=1, lengths=(700,), all_layers=True)
    assert {layer for layer, _ in everything.reciprocal_rank} == {0, 1, 2, 3}
    assert with_heads(settings, everything.heads, True).draft.score_layers is None


def test_rules_without_heads_are_refused(tiny_settings):
    for scorer in ("none", "single_layer"):
        settings = tiny_settings.model_copy(
            update={"selection": tiny_settings.selection.for_request({"scorer": scorer})}
        )
        with pytest.raises(ConfigurationError, match="does not use score_heads"):
            calibrate(settings, quiet)


def a_calibration(all_layers=False, after=1.0):
    heads = ((1, 0), (1, 3), (2, 5))
    values = {(layer, head): 0.5 for layer in range(3) for head in range(6)}
    kept = dict.fromkeys(HELD_OUT_TASKS, 0.8)
    changed = dict.fromkeys(HELD_OUT_TASKS, after)
    return Calibration(values, values, heads, kept, changed, 0.2, all_layers)


def test_holding_out_decides():
    assert a_calibration(after=0.8).holds
    assert not a_calibration(after=0.79).holds


TEXT = """\
# a comment
target:
  model: smollm2
draft:  # the draft
  model: smollm2
  # which layers
  layers: 20
  score_layers: [1, 19]

  weights: int8
selection:
  keep_rate: 0.3
"""


def test_writing_changes_one_line_and_keeps_the_rest(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(TEXT)
    before = load_settings(path)
    write_heads(path, a_calibration())
    lines = path.read_text().splitlines()
    assert [line for line in lines if "score_heads" not in line] == TEXT.splitlines()
    after = load_settings(path)
    assert after.draft.score_heads == ((1, 0), (1, 3), (2, 5))
    assert after.model_copy(update={"draft": before.draft}) == before
    write_heads(path, a_calibration())
    assert path.read_text().splitlines() == lines


def test_all_layers_takes_the_old_layers_out(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(TEXT)
    write_heads(path, a_calibration(all_layers=True))
    assert load_settings(path).draft.score_layers is None
    assert "weights: int8" in path.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("draft: {model: smollm2}\n", "no draft section of one setting per line"),
        ("target:\n  model: smollm2\n", "no draft section"),
        ("draft:\n  model: smollm2\n  layers: 2\n", "score_heads names layer 2"),
    ],
)
def test_what_cannot_be_written_leaves_the_file_alone(tmp_path, text, message):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        write_heads(path, a_calibration())
    assert path.read_text() == text


def test_the_plot(tmp_path):
    plot_heads(a_calibration(), tmp_path / "new" / "heads.png")
    assert (tmp_path / "new" / "heads.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("holds", [True, False])
def test_the_command_writes_only_what_holds(tiny_settings, tmp_path, monkeypatch, holds):
    config = tmp_path / "tiny.yaml"
    dump_settings(tiny_settings, config)
    old = config.read_text()
    found = a_calibration(after=0.9 if holds else 0.1)
    monkeypatch.setattr(calibration_module, "calibrate", lambda *_: found)
    arguments = ["calibrate", "--config", str(config), "--write", "--plot", str(tmp_path / "p.png")]
    result = CliRunner().invoke(app, arguments)
    assert "held out" in result.output
    if holds:
        assert result.exit_code == 0
        heads = yaml.safe_load(config.read_text())["draft"]["score_heads"]
        assert heads == [[1, 0], [1, 3], [2, 5]]
    else:
        assert "held-out classes keep less" in str(result.exception)
        assert config.read_text() == old


def test_settings_accept_what_is_found(found):
    settings = with_heads(Settings(), found.heads, False)
    assert settings.draft.score_heads == found.heads
