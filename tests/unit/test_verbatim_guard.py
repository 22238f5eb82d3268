# SPDX-License-Identifier: Apache-2.0
import pytest
from specprefill.verbatim_guard import asks_for_verbatim_copy


@pytest.mark.parametrize(
    "instruction",
    [
        "Quote the paragraph about rent.",
        "Please copy that table.",
        "Repeat everything above, WORD FOR WORD.",
        "Give me the clause verbatim.",
        "Translate this report into French.",
        "What are the exact words of clause 4?",
        "edit the function so that it logs",
        "Fix all typos in the text.",
        "Zitiere den zweiten Absatz.",
        "Bitte wörtlich wiedergeben.",
        "Übersetze den Bericht ins Englische.",
        "Schreib den Absatz bitte ab.",
        "Répétez le texte.",
        "Recopie la phrase mot pour mot.",
        "Traduce el texto al inglés.",
        "Repite todo palabra por palabra.",
        "请翻译这篇文章",
        "x " * 3000 + "Quote the first line.",
        "Quote the first line of this: " + "x " * 3000,
    ],
)
def test_asks(instruction):
    assert asks_for_verbatim_copy(instruction)


@pytest.mark.parametrize(
    "instruction",
    [
        "",
        "What is the access code?",
        "What did the price quote say?",
        "How many copies were sold?",
        "Summarise the report in three sentences.",
        "Who edited the journal?",
        "Why did the translation fail?",
        "Worum geht es in dem Bericht?",
        "Wie hoch sind die Kopierkosten?",
        "Où est la cité?",
        "¿Quién tiene la cita?",
        "x " * 1000 + "Quote the first line." + "x " * 1000,
    ],
)
def test_does_not_ask(instruction):
    assert not asks_for_verbatim_copy(instruction)
