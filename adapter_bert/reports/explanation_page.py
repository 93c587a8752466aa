"""A page of texts whose words are coloured by what each adds to an answer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from adapter_bert.reports import html_page
from adapter_bert.reports.html_page import Content, element

GENERATOR = "adapter_bert.commands.predict"
# Lines differ, to be told apart in grey and in print.
STYLE = """
.text { white-space: pre-wrap; line-height: 2; }
mark { color: inherit; padding: .1rem 0; background:
  color-mix(in srgb, var(--word) var(--share), transparent); }
mark.for { --word: #2a7fff; border-bottom: 2px solid var(--word); }
mark.against { --word: #e08a00; border-bottom: 2px dotted var(--word); }
"""
# Percents of the colour of the strongest word.
MOST = 60
ABOUT = (
    "A word with a solid line speaks for the answer, with a dotted line "
    "against; the stronger, the more colour. Attributions are integrated "
    "gradients from a text of mask tokens. They add up to the difference of "
    "the log-odds of a label's probability, or of a regression's value, "
    "between both texts, up to the error."
)


def explanation_page(
    columns: Mapping[str, Sequence[str]],
    answered: Iterable[tuple[Sequence[str], Mapping[str, Any]]],
) -> bytes:
    """Returns the whole page in UTF-8.

    Args:
        columns: names of a row's texts, by task.
        answered: rows and their answers, with `task` and `explanation`.
    """
    sections = [
        _section(number, columns[answer["task"]], row, answer)
        for number, (row, answer) in enumerate(answered, 1)
    ]
    about = html_page.section(2, "How to read this page", ABOUT)
    return html_page.page(
        "Why these answers", [about, *sections], STYLE, GENERATOR
    )


def _section(
    number: int,
    columns: Sequence[str],
    row: Sequence[str],
    answer: Mapping[str, Any],
) -> Element:
    explanation = answer["explanation"]
    words, sums = explanation["words"], explanation["completeness"]
    if "value" in answer:
        title, changed = f"{answer['value']:.4g}", "Change of the value"
    else:
        label = explanation["label"]
        share = answer["scores"][label]
        title = f"{label} ({share:.1%})"
        if answer.get("label", label) is None:
            title = f"no label, {title} is the likeliest"
        changed = f"Change of the probability of {label}"
    strongest = max((abs(x["attribution"]) for x in words), default=0.0)
    texts = [
        element(
            "div",
            element("h3", column),
            element(
                "p", *_coloured(column, text, words, strongest), class_="text"
            ),
        )
        for column, text in zip(columns, row)
    ]
    checked = [x for x in words if "left_out" in x]
    checked.sort(key=lambda x: -abs(x["attribution"]))
    table = html_page.table(
        "The strongest words, and the answer without each",
        ["Word", "Attribution", changed],
        [
            [x["text"], f"{x['attribution']:.3f}", f"{x['left_out']:.3f}"]
            for x in checked
        ],
    )
    relative = sums["relative"]
    share = "" if relative is None else f", {relative:.1%} of the difference"
    return html_page.section(
        2,
        f"{number}. {answer['task']}: {title}",
        *texts,
        table,
        f"Text {sums['text']:.3f}, baseline {sums['baseline']:.3f}, sum of "
        f"attributions {sums['sum']:.3f}, error {sums['error']:.3f}{share}.",
    )


def _coloured(
    column: str,
    text: str,
    words: Iterable[Mapping[str, Any]],
    strongest: float,
) -> list[Content]:
    parts: list[Content] = []
    place = 0
    for word in words:
        if word["column"] != column:
            continue
        parts.append(text[place : word["start"]])
        attribution = word["attribution"]
        share = MOST * abs(attribution) / strongest if strongest else 0.0
        mark = element(
            "mark",
            text[max(place, word["start"]) : word["end"]],
            class_="against" if attribution < 0 else "for",
            style=f"--share: {share:.0f}%",
            title=f"{attribution:.3f}",
        )
        parts.append(mark)
        place = max(place, word["end"])
    return [*parts, text[place:]]
