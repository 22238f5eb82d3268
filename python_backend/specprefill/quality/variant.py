# SPDX-License-Identifier: Apache-2.0
"""Variant: one way of pruning, as overrides of a deployment's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml

from specprefill.errors import ConfigurationError
from specprefill.settings import DraftSettings, SelectionSettings, Settings

DENSE = "dense"
KEEP_RATES = (0.1, 0.2, 0.3)

# The paper's draft (arXiv 2502.02789): every layer, whole attention, weights as they are.
_WHOLE_DRAFT = {
    "layers": None,
    "score_layers": None,
    "score_heads": None,
    "attention_window": None,
    "weights": "as_dtype",
}
_PAPER_RULE = {
    "scorer": "lookahead",
    "look_ahead": 8,
    "pool_kernel": 13,
    "pooling": "avg",
    "chunk_size": 32,
    "chunk_borders": "fixed",
}


# Name, selection overrides, draft overrides.
_Change = tuple[str, dict[str, Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of pruning.

    Attributes:
        label: names it in tables; variants whose labels agree up to "@" share a curve.
        selection: overrides of the selection settings.
        draft: overrides of the draft settings.
        oracle: the tokens that hold the answer are kept, which no deployment could know. Tells
            what the target loses to gaps from what a rule missed; no upper bound of any rule.
    """

    label: str
    selection: Mapping[str, Any] = field(default_factory=dict)
    draft: Mapping[str, Any] = field(default_factory=dict)
    oracle: bool = False

    @property
    def curve(self) -> str:
        """What its points are joined with in plots."""
        return self.label.partition("@")[0]

    def settings(self, base: Settings) -> Settings:
        """Apply the overrides to a deployment.

        Raises:
            InvalidRequestError: a selection override is out of range.
            ConfigurationError: a draft override is.
        """
        selection = base.selection.for_request(self.selection)
        try:
            draft = DraftSettings.model_validate({**base.draft.model_dump(), **self.draft})
        except ValueError as error:
            raise ConfigurationError(f"variant {self.label}: {error}") from error
        return base.model_copy(update={"selection": selection, "draft": draft})


def scorers(base: Settings) -> list[Variant]:
    """Every scoring rule at every keep rate, the paper's rule on the whole draft, and the oracle.

    The oracle keeps the tokens that hold the answer, and evenly spaced chunks for the rest.
    """
    names = get_args(SelectionSettings.model_fields["scorer"].annotation)
    # The paper's own rule reads deep layers and decodes: it is compared as it was published.
    rules: dict[str, tuple[dict[str, Any], dict[str, Any]]]
    rules = {name: ({"scorer": name}, {}) for name in names if name != "lookahead"}
    rules["paper"] = (_PAPER_RULE, _WHOLE_DRAFT)
    compared = [
        Variant(f"{name}@{rate:g}", {**selection, "keep_rate": rate}, draft)
        for name, (selection, draft) in rules.items()
        for rate in KEEP_RATES
    ]
    oracles = [
        Variant(f"oracle@{rate:g}", {"scorer": "none", "keep_rate": rate}, oracle=True)
        for rate in KEEP_RATES
    ]
    return [*compared, *oracles]


def choices(base: Settings) -> list[Variant]:
    """One setting away from the deployment's own at its keep rate, or two that go together."""
    changes: list[_Change] = [
        ("as configured", {}, {}),
        *((f"scorer {name}", {"scorer": name}, {}) for name in ("zscore", "window")),
        ("scorer window, chunk 16", {"scorer": "window", "chunk_size": 16}, {}),
        ("scorer zscore, chunk 16", {"scorer": "zscore", "chunk_size": 16}, {}),
        *((f"query_window {n}", {"query_window": n}, {}) for n in (8, 32)),
        *((f"pool_kernel {n}", {"pool_kernel": n}, {}) for n in (1, 33)),
        *((f"chunk_size {n}", {"chunk_size": n}, {}) for n in (16, 64)),
        ("neighbours 1", {"neighbours": 1}, {}),
        *(
            (f"borders {kind}", {"chunk_borders": kind}, {})
            for kind in ("fixed", "line", "sentence")
        ),
        *((f"coverage {share}", {"coverage": share}, {}) for share in (0.25, 0.5)),
        ("whole attention", {}, {"attention_window": None}),
        ("weights as dtype", {}, {"weights": "as_dtype"}),
        ("paper", _PAPER_RULE, _WHOLE_DRAFT),
    ]
    return _changed(base, changes)


def budgets(base: Settings) -> list[Variant]:
    """Budgets that follow the scores, beside fixed keep rates."""
    fixed = [Variant(f"rate@{rate:g}", {"keep_rate": rate}) for rate in (*KEEP_RATES, 0.5)]
    tokens = [
        Variant(f"tokens@{n}", {"budget": "tokens", "keep_tokens": n}) for n in (256, 512, 1024)
    ]
    mass = [Variant(f"mass@{m:g}", {"budget": "mass", "keep_mass": m}) for m in (0.3, 0.5, 0.7)]
    threshold = [
        Variant(f"threshold@{t:g}", {"budget": "threshold", "keep_threshold": t})
        for t in (0.1, 0.2, 0.4)
    ]
    return [*fixed, *tokens, *mass, *threshold]


def segments(base: Settings) -> list[Variant]:
    """The prompt read at once, and in segments with a long and a short tail behind each."""
    changes: list[_Change] = [
        ("at once", {}, {"segment_tokens": None}),
        ("at once, whole attention", {}, {"segment_tokens": None, "attention_window": None}),
        *(
            (f"segments {tokens}, tail {tail}", {"protect_last": tail}, {"segment_tokens": tokens})
            for tokens in (512, 1024)
            for tail in (32, 128)
        ),
    ]
    return _changed(base, changes)


SETS = {"scorers": scorers, "choices": choices, "budgets": budgets, "segments": segments}


def read_variants(names: Sequence[str], base: Settings) -> list[Variant]:
    """Read what to compare.

    Args:
        names: each a name in `SETS`, a YAML file with a list of {label, selection, draft}, or
            overrides as `scorer=window,keep_rate=0.1,draft.layers=16`.
        base: the deployment that the overrides apply to.

    Raises:
        ConfigurationError: unknown name, unreadable file, or two variants with one label.
        InvalidRequestError: an override is out of range.
    """
    variants: list[Variant] = []
    for name in names:
        if name in SETS:
            variants += SETS[name](base)
        elif "=" in name:
            variants.append(_inline(name))
        elif Path(name).suffix in (".yaml", ".yml"):
            variants += _from_file(Path(name))
        else:
            allowed = f"{', '.join(SETS)}, a .yaml file, or name=value,name=value"
            raise ConfigurationError(f"variants: got {name!r}; allowed: {allowed}")
    labels = [variant.label for variant in variants]
    for label in labels:
        if labels.count(label) > 1 or label == DENSE:
            raise ConfigurationError(f"variants: the label {label!r} is taken")
    for variant in variants:
        variant.settings(base)
    return variants


def _changed(base: Settings, changes: Sequence[_Change]) -> list[Variant]:
    rate = base.selection.keep_rate
    variants: dict[str, Variant] = {}
    for name, selection, draft in changes:
        variant = Variant(f"{name}@{rate:g}", {"keep_rate": rate, **selection}, draft)
        # A change to what is configured already is no change.
        variants.setdefault(variant.settings(base).model_dump_json(), variant)
    return list(variants.values())


def _inline(text: str) -> Variant:
    selection: dict[str, Any] = {}
    draft: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigurationError(f"variants: {part!r} is no name=value")
        section = draft if name.startswith("draft.") else selection
        section[name.removeprefix("draft.").strip()] = yaml.safe_load(value)
    return Variant(text, selection, draft)


def _from_file(path: Path) -> list[Variant]:
    try:
        entries = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"variants file {path}: {error}") from error
    if not isinstance(entries, list):
        raise ConfigurationError(f"variants file {path} must hold a list of variants")
    variants = []
    for number, entry in enumerate(entries, 1):
        allowed = "label, selection, draft"
        if not isinstance(entry, dict) or "label" not in entry:
            raise ConfigurationError(f"{path}: entry {number} has no label; allowed: {allowed}")
        unknown = sorted(entry.keys() - {"label", "selection", "draft"})
        if unknown:
            raise ConfigurationError(f"{path}: {unknown[0]}: unknown key; allowed: {allowed}")
        variants.append(
            Variant(str(entry["label"]), entry.get("selection") or {}, entry.get("draft") or {})
        )
    return variants
