"""Draws the attention of trained fusions to their adapters.

    .venv/bin/adapter-bert plot_fusion RUNS... --output_dir=OUT

The program takes the runs below the folders that have a
`fusion_attention.json`. Each task gets a heatmap of layers by adapters: the
mean over its runs at the learning rate with the best mean score (Figure 5 of
Pfeiffer et al. 2021). The figure is fusion_attention.png, its numbers are
fusion_attention.json.
"""

import os
from typing import Any

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import files
from adapter_bert.errors import UserError
from adapter_bert.methods.fusion import ATTENTION, Fusion
from adapter_bert.reports.collect_runs import (
    SeedGroup,
    best,
    find_runs,
    group_by_task,
    main_score,
    runs_parser,
)
from adapter_bert.training import fusion_report

# Members of the file of a run, as `files.read_object` takes them.
CONTENT = {"adapters": list, "places": list, "weights": list}


def read_attention(group: SeedGroup) -> dict[str, Any]:
    """Gets the mean over the runs of one setting, as `fusion_report.shares`."""
    attentions = [
        files.read_object(
            str(run.folder / fusion_report.FILE), "an attention", CONTENT
        )
        for run in group.runs
    ]
    for other in attentions[1:]:
        if any(
            other[key] != attentions[0][key] for key in ("adapters", "places")
        ):
            raise UserError(
                f"the fusions below {group.runs[0].folder.parent} are of "
                "different adapters; expected one library for all"
            )
    weights = np.mean([one["weights"] for one in attentions], axis=0)
    return {
        **attentions[0],
        "weights": weights.tolist(),
        "runs": len(attentions),
    }


def main() -> None:
    """Draws what the arguments name."""
    arguments = runs_parser(__doc__, "figure").parse_args()
    panels = {}
    for task, groups in group_by_task(find_runs(arguments.runs)).items():
        fusions = [g for g in groups if isinstance(g.method, Fusion)]
        if fusions:
            chosen = best(fusions, main_score(fusions))
            panels[task] = read_attention(chosen)
    if not panels:
        raise UserError(f"no fusion in {', '.join(arguments.runs)}")
    files.prepare_folder(arguments.output_dir)
    path = os.path.join(arguments.output_dir, ATTENTION)
    files.write_bytes(f"{path}.png", fusion_report.heatmaps(panels))
    files.write_json(f"{path}.json", panels)
    print(f"{path}.png and .json have {', '.join(panels)}")
