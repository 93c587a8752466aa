"""Attention of a fusion to its adapters, as numbers and as a heatmap."""

import io
from collections.abc import Mapping
from logging import WARNING, getLogger
from typing import Any

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.methods.fusion import ATTENTION, Fusion
from adapter_bert.tasks.task import results_path, write_table
from adapter_bert.training.extras import Extra
from adapter_bert.training.run import Answers, Run

FILE = f"{ATTENTION}.json"


class FusionReport(Extra):
    """Writes how much of each adapter a fusion uses on the dev sets."""

    def end(self, run: Run, answers: Answers) -> None:
        model = run.model
        for suffix, name in run.dev:
            if answers.shown[name]:
                attention = answers.shown[name][ATTENTION]
                path = write(
                    run.folder,
                    shares(model.method, model.config, attention),
                    suffix,
                    run.task.name,
                )
                logging.info("how much of each adapter is used: %s", path)


def shares(
    method: Fusion, config: BertConfig, attention: np.ndarray
) -> dict[str, Any]:
    """Computes the mean attention over the rows of a split.

    Takes float32 [rows, places, adapters], means over each row's tokens. Gives
    `adapters`, names; `places`, [layer, site]; `weights`, [places, adapters].
    """
    return {
        "adapters": [part.name for part in method.parts],
        "places": [list(place) for place in method.places(config)],
        "weights": attention.astype(np.float64).mean(axis=0).tolist(),
    }


def write(
    output_dir: str, shown: Mapping[str, Any], suffix: str, title: str
) -> str:
    """Writes `fusion_attention<suffix>`, JSON, TSV and PNG; gives the TSV."""
    table = results_path(output_dir, ATTENTION, suffix)
    rows = [["layer", "sublayer", *shown["adapters"]]]
    for (layer, site), row in zip(shown["places"], shown["weights"]):
        rows.append([str(layer), site, *(f"{weight:.6f}" for weight in row)])
    prefix = table.removesuffix("tsv")
    files.write_json(prefix + "json", shown)
    files.write_bytes(prefix + "png", heatmaps({title: shown}))
    return write_table(table, rows)


def heatmaps(panels: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Draws `shares` by title as a PNG, as Pfeiffer et al. 2021 in Figure 5."""
    # Loads slowly, and logs.
    getLogger("matplotlib").setLevel(WARNING)
    from matplotlib.figure import Figure

    widths = [len(shown["adapters"]) for shown in panels.values()]
    heights = [len(shown["places"]) for shown in panels.values()]
    figure = Figure(
        figsize=(
            sum(widths) * 0.55 + 1.2 * len(panels),
            max(heights) * 0.4 + 1.6,
        ),
        layout="constrained",
    )
    columns = figure.subplots(
        1, len(panels), squeeze=False, width_ratios=widths
    )[0]
    for axes, (title, shown) in zip(columns, panels.items()):
        adapters, places = shown["adapters"], shown["places"]
        axes.imshow(
            shown["weights"],
            vmin=0,
            vmax=1,
            cmap="Blues",
            origin="lower",
            aspect="auto",
        )
        axes.set_title(title)
        axes.set_xticks(range(len(adapters)), adapters, rotation=45, ha="right")
        both = len({site for _, site in places}) > 1
        names = [f"{layer} {site}" if both else layer for layer, site in places]
        axes.set_yticks(range(len(places)), names)
        axes.set_ylabel("layer")
        for (y, x), weight in np.ndenumerate(shown["weights"]):
            axes.text(
                x,
                y,
                f"{weight:.2f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if weight > 0.6 else "black",
            )
    image = io.BytesIO()
    # No version, so that equal numbers give equal bytes.
    figure.savefig(image, format="png", dpi=130, metadata={"Software": None})
    return image.getvalue()
