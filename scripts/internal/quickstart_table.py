"""Prints what tuned tasks came to: score, trained parameters, file sizes.

.venv/bin/python -m scripts.internal.quickstart_table model.safetensors \\
    out/task1 ...
"""

import json
import os
import sys

import command_line


def main(model_file, *run_folders):
    """Prints one row for each run, the full model's size beside."""
    model_size = os.path.getsize(model_file)
    print(
        f"\n{'task':<18}{'dev score':>16}{'trained parameters':>28}"
        f"{'adapter file':>16}{'full model':>14}"
    )
    for folder in run_folders:
        with open(os.path.join(folder, "run.json")) as file:
            parameters = json.load(file)["parameters"]
        with open(os.path.join(folder, "eval_results.json")) as file:
            results = json.load(file)
        score = next(
            f"{name} {results[f'eval_{name}']:{form}}"
            for name, form in (("accuracy", ".3f"), ("f1", ".1f"))
            if f"eval_{name}" in results
        )
        adapter = os.path.join(folder, "adapter", "adapter.safetensors")
        share = parameters["trained"] / parameters["total"]
        trained = f"{parameters['trained']:,} ({share:.1%})"
        print(
            f"{os.path.basename(folder):<18}{score:>16}{trained:>28}"
            f"{os.path.getsize(adapter) / 1e6:>13.1f} MB"
            f"{model_size / 1e6:>11.1f} MB"
        )


if __name__ == "__main__":
    command_line.run(lambda: main(*sys.argv[1:]))
