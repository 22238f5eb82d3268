# SPDX-License-Identifier: Apache-2.0
"""`specprefill explain`: its files, and its refusals; the page's source without a browser."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import pytest
import yaml
from specprefill.cli import app
from specprefill.errors import ConfigurationError, SpecPrefillError
from specprefill.explain.command import ExplainRequest, write_files
from specprefill.explain.html_page import MAX_TOKEN_DETAIL, render_page
from specprefill.explain.png_plot import save_plot
from typer.testing import CliRunner

from tests.explain.conftest import CHAT, WORDS

HOSTILE = (
    "</script><script>alert(1)</script> <!-- <script> \" ' & &amp; <img src=x onerror=alert(1)> "
    "{{ 7*7 }} {% raw %} \r\n 日本語 😀 \x00 \u2028 ]]> javascript:alert(1) "
) * 8


class _Text(HTMLParser):
    """Collects the text of the element with the id `text`, and all tag names."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.text, self.tags, self._depth = "", [], 0

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if self._depth or ("id", "text") in attributes:
            self._depth += 1

    def handle_endtag(self, tag):
        self._depth -= bool(self._depth)

    def handle_data(self, data):
        if self._depth:
            self.text += data


def parse(page):
    parser = _Text()
    parser.feed(page)
    return parser


@pytest.mark.parametrize("text", [WORDS, HOSTILE])
def test_the_page_shows_exactly_the_prompt(make_explanation, text):
    page = render_page(make_explanation(text, chunk_size=8, keep_rate=0.3, protect_last=3))
    assert parse(page).text == text.replace("\x00", "\u2400")


@pytest.mark.parametrize("chunk_size", [1, 7, 32])
def test_a_long_text_is_broken_into_blocks_at_line_ends(make_explanation, chunk_size):
    text = "\n".join(f"{i} " + "word " * (i % 40) for i in range(500))
    explanation = make_explanation(text, chunk_size=chunk_size, keep_rate=0.3)
    page = render_page(explanation)
    assert parse(page).text == text
    blocks = re.findall(r'<div class="block">(.*?)</div>', page, re.DOTALL)
    assert len(blocks) > 8
    texts = [html.unescape(re.sub(r"<[^>]*>", "", block)) for block in blocks]
    assert all(t.endswith("\n") for t in texts[:-1])
    folded = [int(n.replace(",", "")) for n in re.findall(r'data-n="([\d,]+)"', page)]
    record = explanation.record
    assert sum(folded) == record.prompt_tokens - record.kept_tokens
    assert page.count(' f"') + page.count(' f p"') == len(explanation.chunks)


def test_no_text_becomes_markup_or_script(make_explanation):
    explanation = make_explanation(HOSTILE, title=f"{HOSTILE}.txt", chunk_size=8)
    tags = parse(render_page(explanation)).tags
    assert sum(tag == "script" for tag, _ in tags) == 2
    assert not any(tag == "img" for tag, _ in tags)
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    # The policy allows no style attribute either.
    assert not any("style" in attributes for _, attributes in tags)


def test_the_page_names_nothing_outside_itself(make_explanation):
    page = render_page(make_explanation(WORDS))
    assert not re.findall(r"https?:|//cdn|@import|url\(", page)
    links = [a for tag, a in parse(page).tags if "src" in a or "href" in a]
    assert links == [{"rel": "icon", "href": "data:,"}]


def test_a_prompt_of_100_000_tokens_gives_a_page_of_bounded_size(make_explanation, tokenizer):
    count = len(tokenizer(WORDS).input_ids)
    explanation = make_explanation(WORDS, repeat_ids=-(-100_000 // count))
    tokens = explanation.record.prompt_tokens
    assert tokens >= 100_000
    page = render_page(explanation)
    assert len(page.encode()) < 20 * tokens
    assert page.count('<span class="s') < tokens / 16


def test_single_tokens_are_left_out_of_very_long_prompts(make_explanation, monkeypatch):
    explanation = make_explanation(WORDS)
    data = r'id="data">(.*?)</script>'
    assert json.loads(re.search(data, render_page(explanation))[1])["tokens"]
    assert explanation.record.prompt_tokens < MAX_TOKEN_DETAIL
    monkeypatch.setattr("specprefill.explain.html_page.MAX_TOKEN_DETAIL", 10)
    assert json.loads(re.search(data, render_page(explanation))[1])["tokens"] is None


def test_a_dense_explanation_has_a_page_and_no_picture(tmp_path, explainer):
    explanation = explainer.explain("short", "a few words")
    page = render_page(explanation)
    assert "read all" in page
    assert parse(page).text == "a few words"
    with pytest.raises(ConfigurationError, match="no scores to draw: dense"):
        save_plot(explanation, tmp_path / "x.png")


def test_the_picture_shows_kept_and_dropped_chunks(tmp_path, make_explanation):
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    path = tmp_path / "x.png"
    save_plot(make_explanation(WORDS, keep_rate=0.3), path)
    pixels = imread(path)[..., :3].reshape(-1, 3)
    shares = [
        (abs(pixels - to_rgb(colour)).max(axis=1) < 0.02).mean()
        for colour in ("#E69F00", "#B9B5AD", "#0072B2")
    ]
    assert all(share > 0.002 for share in shares)


@pytest.fixture
def workplace(tmp_path, tiny_settings, monkeypatch):
    """A folder with a prompt, chat messages and the tiny deployment's configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.txt").write_bytes(WORDS.replace("\n", "\r\n").encode())
    (tmp_path / "chat.json").write_text(CHAT)
    (tmp_path / "bad.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny_settings.model_dump(mode="json")))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["explain", "--config", "tiny.yaml", *arguments])


def test_one_call_writes_page_picture_and_json(workplace):
    result = run(
        *[
            "prompt.txt",
            "--output",
            "p.html",
            "--png",
            "p.png",
            "--json",
            "p.json",
            "--set",
            "keep_rate=0.15",
        ]
    )
    assert result.exit_code == 0, result.output
    told = json.loads((workplace / "p.json").read_text())
    assert told["text"] == WORDS.replace("\n", "\r\n")
    assert told["record"]["settings"]["keep_rate"] == 0.15
    assert told["title"] == "prompt.txt"
    assert parse((workplace / "p.html").read_text()).text == told["text"]
    assert (workplace / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "pruned: kept" in result.output
    assert "written: p.html" in result.output


def test_without_a_file_name_it_writes_the_page(workplace):
    assert run("--messages", "chat.json").exit_code == 0
    assert (workplace / "explain.html").exists()


def test_answers_are_printed_and_on_the_page(workplace):
    result = run(*["--messages", "chat.json", "--answers", "--max-tokens", "4"])
    assert result.exit_code == 0
    assert "dense: " in result.output
    assert "sparse: " in result.output
    page = (workplace / "explain.html").read_text()
    assert page.count("<article>") == 2
    assert re.search(r"The answers (are the same|differ)\.", page)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("", "give a prompt file"),
        ("prompt.txt --messages chat.json", "not both"),
        ("prompt.txt --replay", "--record FILE"),
        ("prompt.txt --max-tokens 3", "--answers or --replay"),
        ("--record r.json --set keep_rate=0.5", "--set changes nothing"),
        ("--record r.json", "No such file"),
        ("missing.txt", "missing.txt cannot be read"),
        ("bad.bin", "no UTF-8 text"),
        ("prompt.txt --set keep_rate", "name=value"),
        ("prompt.txt --set keep_rate=7", "keep_rate: got 7"),
        ("prompt.txt --set max_tokens=7", "max_tokens: unknown setting"),
        ("prompt.txt --output nowhere/x.html", "cannot be written"),
        ("prompt.txt --png nowhere/x.png", "No such file"),
    ],
)
def test_what_makes_no_sense_is_refused(workplace, arguments, problem):
    result = run(*arguments.split())
    assert isinstance(result.exception, SpecPrefillError), result.output
    assert problem in str(result.exception)


def test_the_files_are_those_asked_for(tmp_path, monkeypatch, make_explanation):
    monkeypatch.chdir(tmp_path)
    explanation = make_explanation(WORDS)
    assert write_files(explanation, None, None, tmp_path / "x.json") == [tmp_path / "x.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    with pytest.raises(SpecPrefillError, match="not both"):
        ExplainRequest(tmp_path, tmp_path).check()
