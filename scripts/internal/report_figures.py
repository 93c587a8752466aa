"""The drawings of a report, as SVG that is put into a page of HTML.

All is in the colour of the page's text. Lines differ in their dashes and
markers, so that they can be told apart in grey, in print and in the dark.
"""

import io
import itertools
from typing import Callable, Mapping, Sequence, Tuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# What takes the colour of the page's text.
INK = "#000000"
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^v*PX"
# Points of a line beyond which each is no longer marked.
MOST_MARKED = 30
# Inches.
LEGEND_ROW = 0.2

Points = Sequence[Tuple[float, float]]


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
    """A drawing as an element.

    Args:
        name: that no other drawing of the page has.
        draw_on: draws.
    """
    made = Figure(figsize=(4.8, 3.2), layout="constrained")
    axes = made.subplots()
    draw_on(axes)
    axes.grid(color="#888888", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    image = io.BytesIO()
    style = {"svg.hashsalt": name, "svg.fonttype": "none"}
    with matplotlib.rc_context(style):
        made.savefig(
            image, format="svg", transparent=True, metadata={"Date": None}
        )
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
