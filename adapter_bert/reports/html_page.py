"""A page of HTML that needs no other file: its elements, tables, figures.

Its parts are elements of `xml.etree`, never text that is put together. So
whatever a user has written is escaped, whichever way it came into the page.

Figures are SVG in the colour of the page's text. Lines differ in their dashes
and markers, so that they can be told apart in grey, in print and in the dark.
"""

import io
import itertools
from typing import Callable, Iterable, List, Mapping, Sequence, Tuple, Union
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Content = Union[str, Element]
Points = Sequence[Tuple[float, float]]

GENERATOR = "adapter_bert.commands.report"
# What takes the colour of the page's text.
INK = "#000000"
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^v*PX"
# Points of a line beyond which each is no longer marked.
MOST_MARKED = 30
# Inches.
LEGEND_ROW = 0.2
# Greys and shapes only. Whatever is wider than a telephone scrolls within
# itself, and the keyboard can scroll it.
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
pre { overflow-x: auto; border: 1px solid #888; padding: .6rem; }
figure { margin: 1rem 0; max-width: 36rem; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { fill: currentColor; }
figure svg * { stroke-linejoin: round; }
"""


def element(tag: str, *content: Content, **attributes: str) -> Element:
    """An element of HTML.

    Of attributes, `class_` is `class`, and `_` within a name is `-`.
    """
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


def paragraph(*content: Content) -> Element:
    """A paragraph."""
    return element("p", *content)


def bullets(items: Iterable[Element]) -> Element:
    """A list of some elements."""
    return element("ul", *(element("li", item) for item in items))


def section(level: int, title: str, *content: Content) -> Element:
    """A part of the page under a heading of this level."""
    return element("section", element(f"h{level}", title), *content)


def _is_number(text: str) -> bool:
    """Whether a cell is a number, with its unit or error at most."""
    return text[:1].isdigit() or text[:1] == "-" and text[1:2].isdigit()


def _cell(text: str, long: bool) -> Element:
    kind = "long" if long else "number" if _is_number(text) else ""
    return element("td", text, **({"class_": kind} if kind else {}))


def table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[Union[str, Element]]],
    long_columns: Sequence[str] = (),
) -> Element:
    """A table, whose first column names the rows.

    Args:
        caption: what it shows.
        header: names of the columns.
        rows: texts; a cell that is made already is taken as it is.
        long_columns: those of whole sentences.
    """
    rows = list(rows)
    body = element("tbody")
    for first, *others in rows:
        row = element("tr", element("th", first, scope="row"))
        for name, cell in zip(header[1:], others):
            is_made = isinstance(cell, Element)
            row.append(cell if is_made else _cell(cell, name in long_columns))
        body.append(row)
    names = [element("th", name, scope="col") for name in header]
    for name, cell in zip(names, body[0] if rows else ()):
        if "number" in cell.get("class", ""):
            name.set("class", "number")
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


def figure(svg: Element, name: str, title: str, text: str) -> Element:
    """A figure with its title for those who do not see it, and its text.

    The drawing is changed. No other figure of the page has its name.
    """
    svg.set("role", "img")
    svg.set("aria-labelledby", f"{name}-title")
    svg.set("aria-describedby", f"{name}-text")
    svg.insert(0, element("title", title, id=f"{name}-title"))
    caption = element("figcaption", text, id=f"{name}-text")
    return element("figure", svg, caption)


def page(title: str, sections: Sequence[Element]) -> bytes:
    """The whole page, in UTF-8.

    A list at its beginning leads to its sections, which are of level 2.
    """
    links: List[Element] = []
    for number, part in enumerate(sections):
        part.set("id", f"section-{number}")
        heading = part[0].text or ""
        links.append(element("a", heading, href=f"#section-{number}"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element(
            "meta",
            name="viewport",
            content="width=device-width, initial-scale=1",
        ),
        element("meta", name="generator", content=GENERATOR),
        element("title", title),
        element("style", STYLE),
    )
    main = element(
        "main",
        element("h1", title),
        element("nav", bullets(links), aria_label="Contents"),
        *sections,
    )
    whole = element("html", head, element("body", main), lang="en")
    text = ElementTree.tostring(whole, encoding="unicode", method="html")
    # A description may hold half of a surrogate pair, which UTF-8 cannot.
    return f"<!DOCTYPE html>\n{text}\n".encode("utf-8", "replace")


def _local(name: str) -> str:
    """A tag's or attribute's name without its namespace."""
    return name.rpartition("}")[2]


def _for_page(part: Element, name: str) -> None:
    """Makes a drawing a part of a page: its names are its own there."""
    part.tag = _local(part.tag)
    attributes = {_local(key): value for key, value in part.attrib.items()}
    part.attrib.clear()
    for key, value in attributes.items():
        if key == "id":
            value = f"{name}-{value}"
        elif key == "href":
            value = f"#{name}-{value[1:]}"
        value = value.replace("url(#", f"url(#{name}-")
        part.set(key, value.replace(INK, "currentColor"))
    for child in list(part):
        # Metadata are of a file; a style would be the whole page's.
        if _local(child.tag) in ("metadata", "style"):
            part.remove(child)
        else:
            _for_page(child, name)


def draw(name: str, draw_on: Callable[[Axes], None]) -> Element:
    """A drawing as an element, of a name of its own on the page."""
    made = Figure(figsize=(4.8, 3.2), layout="constrained")
    axes = made.subplots()
    draw_on(axes)
    axes.grid(color="#888888", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    image = io.BytesIO()
    how = {"format": "svg", "transparent": True, "metadata": {"Date": None}}
    style = {"svg.hashsalt": name, "svg.fonttype": "none"}
    with matplotlib.rc_context(style):
        made.savefig(image, **how)
    svg = ElementTree.fromstring(image.getvalue())
    _for_page(svg, name)
    # As wide as there is room.
    del svg.attrib["width"], svg.attrib["height"]
    return svg


def _literal(text: str) -> str:
    """A text that is no formula, whatever signs it has."""
    return text.replace("$", r"\$")


def lines(
    name: str,
    by_label: Mapping[str, Points],
    x_label: str,
    y_label: str,
    log_x: bool = False,
    from_zero: bool = False,
) -> Element:
    """Lines over numbers, the single one without a legend.

    Args:
        name: as of `draw`.
        by_label: (x, y) of each line, in the order of x.
        x_label: of the axis; whole numbers.
        y_label: of the other one.
        log_x: whether x is on a logarithmic scale.
        from_zero: whether the other axis begins at 0.
    """

    def draw_on(axes: Axes) -> None:
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
            # Below, where no line is.
            axes.figure.set_figheight(3.2 + LEGEND_ROW * len(by_label))
            axes.figure.legend(
                fontsize="small", frameon=False, loc="outside lower left"
            )
        if from_zero:
            # With room above lines that hardly change.
            axes.set_ylim(0, 1.15 * axes.get_ylim()[1])

    return draw(name, draw_on)
