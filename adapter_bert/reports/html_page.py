"""A self-contained page of HTML: elements, tables, figures.

Pages are built of `xml.etree` elements, never by joining strings, so that all
text of users is escaped. Figures are SVG in the colour of the page's text.
Lines differ in dashes and markers, to be told apart in grey and in print.
"""

import html
import io
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Content = Union[str, Element]
Points = Sequence[tuple[float, float]]

GENERATOR = "adapter_bert.commands.report"
# Replaced by the colour of the page's text.
INK = "#000000"
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^v*PX"
# Longer lists, as of labels, are cut.
MOST_ITEMS = 30
# Longer lines have no markers.
MOST_MARKED = 30
# Inches.
LEGEND_ROW = 0.2
# Greys only. Wide parts scroll within themselves, by keyboard too.
STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem;
  max-width: 60rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.3rem; margin-top: 2.5rem; border-top: 1px solid; }
h3 { font-size: 1.1rem; margin-top: 1.8rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; overflow-wrap: normal;
  min-width: min(100%, 22rem); }
caption { text-align: left; font-style: italic; padding-bottom: .3rem; }
th, td { border-bottom: 1px solid #888; padding: .2rem .6rem;
  text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid; }
caption span { display: block; max-width: calc(100vw - 2rem); }
.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.long { min-width: 12rem; overflow-wrap: anywhere; }
summary { cursor: pointer; padding: .4rem 0; }
pre { overflow-x: auto; border: 1px solid #888; padding: .6rem; }
figure { margin: 1rem 0; max-width: 36rem; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { fill: currentColor; }
figure svg * { stroke-linejoin: round; }
"""


PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{generator}">
<title>{title}</title><style>{style}</style></head>
<body><main><h1>{title}</h1><nav aria-label="Contents">{links}</nav>
{sections}</main></body></html>
"""


def element(tag: str, *content: Content, **attributes: str) -> Element:
    """Makes an HTML element; `class_` is `class`, `aria_label` aria-label."""
    names = (name.rstrip("_").replace("_", "-") for name in attributes)
    made = Element(tag, dict(zip(names, attributes.values())))
    for part in content:
        if isinstance(part, Element):
            made.append(part)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + part
        else:
            made.text = (made.text or "") + part
    return made


def section(level: int, title: str, *content: Any) -> Element:
    """Makes a section with its heading; a text is a paragraph of its own.

    An empty text, list or mapping, None and False are left out.
    """
    blocks = [
        x if isinstance(x, Element) else element("p", x)
        for x in content
        if isinstance(x, Element) or x
    ]
    return element("section", element(f"h{level}", title), *blocks)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_shown(v)}" for k, v in value.items())
    if isinstance(value, list):
        text = ", ".join(map(_shown, value[:MOST_ITEMS]))
        more = len(value) - MOST_ITEMS
        return f"{text} and {more} more" if more > 0 else text
    return f"{value:,}" if type(value) is int and value > 9999 else str(value)


def facts(caption: str, values: Mapping[str, Any]) -> Element:
    """Makes a table of names and values."""
    rows = [(name.replace("_", " "), _shown(v)) for name, v in values.items()]
    return table(caption, ("what", "value"), rows, ("value",))


def table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[Union[str, Element]]],
    long_columns: Sequence[str] = (),
) -> Element:
    """Makes a table, whose first column names the rows.

    Cells are texts or `td` elements; `long_columns` hold whole sentences.
    """
    body = element("tbody")
    names = [element("th", name, scope="col") for name in header]
    for first, *others in rows:
        row = element("tr", element("th", first, scope="row"))
        for name, head, cell in zip(header[1:], names[1:], others):
            if not isinstance(cell, Element):
                is_number = re.match(r"-?\d", cell)
                kind = {"class": "number"} if is_number else {}
                kind = {"class": "long"} if name in long_columns else kind
                cell = element("td", cell, **kind)
            # As the first row's cell is.
            if not len(body) and cell.get("class") == "number":
                head.set("class", "number")
            row.append(cell)
        body.append(row)
    made = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", element("tr", *names)),
        body,
    )
    return element(
        "div",
        made,
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def page(
    title: str,
    sections: Sequence[Element],
    style: str = "",
    generator: str = GENERATOR,
) -> bytes:
    """Returns the whole page in UTF-8, with links to its sections of level 2.

    `style` comes after the page's own, `generator` names the program.
    """
    links = element("ul")
    for number, part in enumerate(sections):
        part.set("id", f"section-{number}")
        link = element("a", part[0].text or "", href=f"#section-{number}")
        links.append(element("li", link))
    text = PAGE.format(
        title=html.escape(title),
        generator=generator,
        style=STYLE + style,
        links=_written(links),
        sections="".join(map(_written, sections)),
    )
    # Descriptions may hold lone surrogates, which UTF-8 cannot encode.
    return text.encode("utf-8", "replace")


def _written(part: Element) -> str:
    return ElementTree.tostring(part, encoding="unicode", method="html")


def _for_page(part: Element, name: str) -> None:
    part.tag = part.tag.rpartition("}")[2]
    attributes = dict(part.attrib)
    part.attrib.clear()
    for key, value in attributes.items():
        key = key.rpartition("}")[2]
        if key == "id":
            value = f"{name}-{value}"
        elif key == "href":
            value = f"#{name}-{value[1:]}"
        value = value.replace("url(#", f"url(#{name}-")
        part.set(key, value.replace(INK, "currentColor"))
    for child in list(part):
        # A style would apply to the whole page.
        if child.tag.endswith(("}metadata", "}style")):
            part.remove(child)
        else:
            _for_page(child, name)


def _literal(text: str) -> str:
    return text.replace("$", r"\$")


def line_figure(
    name: str,
    title: str,
    text: str,
    by_label: Mapping[str, Points],
    x_label: str,
    y_label: str,
    log_x: bool = False,
    from_zero: bool = False,
) -> Element:
    """Draws lines, with a legend if there are several.

    Args:
        name: prefix of the figure's ids, unique on the page.
        title: for screen readers.
        text: the caption.
        by_label: (x, y) of each line, in the order of x, whose ticks are
            whole numbers.
        x_label, y_label: labels of the axes.
        log_x: logarithmic scale for x.
        from_zero: begin the y axis at 0.
    """
    drawing = Figure(figsize=(4.8, 3.2), layout="constrained")
    axes = drawing.subplots()
    kinds = zip(itertools.cycle(DASHES), itertools.cycle(MARKERS))
    for (label, points), (dash, marker) in zip(by_label.items(), kinds):
        axes.plot(
            *zip(*points),
            color=INK,
            ls=dash,
            marker=marker if len(points) <= MOST_MARKED else "",
            markerfacecolor="none",
            lw=1.2,
            label=_literal(label),
        )
    if log_x:
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel(_literal(x_label))
    axes.set_ylabel(_literal(y_label))
    if len(by_label) > 1:
        # Below the axes, where no line is.
        drawing.set_figheight(3.2 + LEGEND_ROW * len(by_label))
        drawing.legend(
            fontsize="small", frameon=False, loc="outside lower left"
        )
    if from_zero:
        # With room above lines that hardly change.
        axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    axes.grid(color="#888888", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    image = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        drawing.savefig(
            image, format="svg", transparent=True, metadata={"Date": None}
        )
    svg = ElementTree.fromstring(image.getvalue())
    _for_page(svg, name)
    # The style sheet decides on the size.
    del svg.attrib["width"], svg.attrib["height"]
    svg.set("role", "img")
    svg.set("aria-labelledby", f"{name}-title")
    svg.set("aria-describedby", f"{name}-text")
    svg.insert(0, element("title", title, id=f"{name}-title"))
    caption = element("figcaption", text, id=f"{name}-text")
    return element("figure", svg, caption)
