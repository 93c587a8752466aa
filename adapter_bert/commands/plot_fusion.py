"""Draws the attention of trained fusions to their adapters.

    .venv/bin/adapter-bert plot_fusion RUNS... --output_dir=OUT

The program takes the runs below the folders that have a
`fusion_attention.json`. Each task gets a heatmap of layers by adapters: the
mean over its runs at the learning rate with the best mean score (Figure 5 of
Pfeiffer et al. 2021). The figure is fusion_attention.png, its numbers are
fusion_attention.json.
"""

import os

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import files
from adapter_bert.errors import UserError
from adapter_bert.methods.fusion import ATTENTION
from adapter_bert.reports.collect_runs import (
    Output,
    choose,
    find_runs,
    read_arguments,
    replace_results,
    settings_of,
)
from adapter_bert.training import fusion_report

# Members of the file of a run, as `files.read_object` takes them.
CONTENT = {"adapters": list, "places": list, "weights": list}


def main() -> None:
    """Draws what the arguments name."""
    options, folders = read_arguments(Output, __doc__)
    settings = settings_of(find_runs(folders))
    fusions = settings[settings.family == "fusion"]
    panels = {}
    for _, chosen in choose(fusions, "family").iterrows():
        first, *others = [
            files.read_object(
                str(folder / fusion_report.FILE), "an attention", CONTENT
            )
            for folder in chosen.folder
        ]
        if any(
            other[key] != first[key]
            for other in others
            for key in ("adapters", "places")
        ):
            raise UserError(
                f"the fusions below {chosen.folder[0].parent} are of "
                "different adapters; expected one library for all"
            )
        weights = np.mean([x["weights"] for x in (first, *others)], axis=0)
        panels[chosen.task] = {
            **first,
            "weights": weights.tolist(),
            "runs": len(chosen.folder),
        }
    if not panels:
        raise UserError(f"no fusion in {', '.join(folders)}")
    contents = {
        f"{ATTENTION}.png": fusion_report.heatmaps(panels),
        f"{ATTENTION}.json": files.json_text(panels).encode(),
    }
    replace_results(options.output_dir, "plot_fusion", contents)
    path = os.path.join(options.output_dir, ATTENTION)
    print(f"{path}.png and .json have {', '.join(panels)}")
