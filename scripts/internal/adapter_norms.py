"""How large the values are that a method has added to each layer."""

import pathlib
from typing import Dict, List, Mapping, Optional, Tuple
from xml.etree.ElementTree import Element

import numpy as np

import modeling
from bert.hooks import layer_of
from scripts.internal.html_page import figure, paragraph, section, table
from scripts.internal.report_figures import lines
from weights import adapter_artifact, run_record
from weights.adapter_artifact import INDICES, VALUES

# Places that a figure can tell apart.
MOST_LINES = 8

# Squares of the norms and counts, by place and layer; None outside of layers.
Norms = Dict[str, Dict[Optional[int], Tuple[float, int]]]


def _place(name: str, layer: Optional[int]) -> str:
    """Where a variable is, the same for all layers and its biases."""
    folder = name.rpartition("/")[0] or name
    return folder.replace(f"layer_{layer}/", "").replace(f"/layer_{layer}", "")


def measure(artifact: adapter_artifact.Artifact, path: str) -> Norms:
    """The norms of what was added to BERT.

    Args:
        artifact: a trained adapter.
        path: of its description, for the error's text.

    Raises:
        UserError: its BERT is none of this program.
    """
    own = modeling.list_variables(run_record.bert_config(artifact.config, path))
    norms: Norms = {}
    for name in artifact.weights.shapes:
        if name in own or name.endswith((INDICES, VALUES)):
            continue
        layer = layer_of(name)
        by_layer = norms.setdefault(_place(name, layer), {})
        square, count = by_layer.get(layer, (0.0, 0))
        value = np.asarray(artifact.weights.read(name), np.float64)
        by_layer[layer] = square + np.sum(value**2), count + value.size
    return norms


def _norm(entry: Optional[Tuple[float, int]]) -> str:
    return "–" if entry is None else f"{np.sqrt(entry[0]):.4g}"


def _figure(name: str, norms: Mapping[str, Dict]) -> Element:
    points = {
        place: [(layer, np.sqrt(by[layer][0])) for layer in sorted(by)]
        for place, by in norms.items()
    }
    return figure(
        lines(name, points, "layer", "norm", from_zero=True),
        name,
        "Norms of what was added, by layer",
        "The norm of what was added at each place, over the layers from 0. "
        "The numbers are in the table.",
    )


def norm_section(folder: pathlib.Path, level: int, name: str) -> Element:
    """The norms of a run's adapter.

    Args:
        folder: of the run, or of one of its tasks.
        level: of the heading.
        name: that no other figure of the page has.

    Raises:
        UserError: the adapter is damaged.
    """
    title = "Norms of the adapter"
    place = folder / "adapter"
    if not (place / adapter_artifact.CONFIG_FILE).exists():
        return section(level, title, paragraph("The run has no adapter here."))
    path = str(place / adapter_artifact.CONFIG_FILE)
    norms = measure(adapter_artifact.read(str(place)), path)
    layered = {
        place: by for place, by in sorted(norms.items()) if set(by) != {None}
    }
    content: List[Element] = [
        paragraph(
            "A norm is the root of the sum of the squares of a place's values "
            "(Euclidean). BERT's own variables are left out, trained or not."
        )
    ]
    if layered:
        if len(layered) <= MOST_LINES:
            content.append(_figure(name, layered))
        layers = sorted({layer for by in layered.values() for layer in by})
        content.append(
            table(
                "Norm of what was added at each place of each layer",
                ("layer", *layered),
                [
                    (
                        str(layer),
                        *(_norm(by.get(layer)) for by in layered.values()),
                    )
                    for layer in layers
                ],
            )
        )
    else:
        content.append(paragraph("The method adds nothing to the layers."))
    others = {place: by for place, by in norms.items() if place not in layered}
    if others:
        content.append(
            table(
                "Norm of what was added outside of the layers",
                ("place", "norm", "numbers"),
                [
                    (place, _norm(by[None]), f"{by[None][1]:,}")
                    for place, by in others.items()
                ],
            )
        )
    return section(level, title, *content)
