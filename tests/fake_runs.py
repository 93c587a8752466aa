"""Folders of runs that no training made, for tables and figures."""

import dataclasses
import json

from adapter_bert.tasks import TASKS


class FakeRuns:
    """Writes runs below a folder."""

    def __init__(self, folder, config):
        self.folder = folder
        self.config = config
        self.count = 0

    def add(
        self,
        task,
        method,
        scores,
        rate=1e-3,
        epochs=3,
        seed=1,
        kept=0,
        batch_size=32,
        step=3,
        bert="f",
        data="rows",
        dev="dev rows",
        cost=None,
        parent=None,
        kind="custom",
        examples=10,
    ):
        """Writes a run; `scores` without `eval_`, as the programs do."""
        folder = self.folder / (parent or task) / str(self.count)
        self.count += 1
        folder.mkdir(parents=True)
        name = task if task in TASKS or task == "squad" else kind
        description = {
            "base": {"name": "bert", "fingerprint": bert},
            "data_name": task.replace(" (custom)", ""),
            "tokenizer": {},
            "task": {"name": name},
            "bert_config": dataclasses.asdict(self.config),
            "method": method,
            "training": {
                "learning_rate": rate,
                "epochs": epochs,
                "seed": seed,
                "batch_size": batch_size,
                "steps": 3,
                "data": data,
                "examples": examples,
            },
            "parameters": {"trained": 0, "total": 0, "kept": kept},
        }
        (folder / "run.json").write_text(json.dumps(description))
        results = {f"eval_{name}": value for name, value in scores.items()}
        results.update(global_step=step, dev_data={"dev": dev})
        (folder / "eval_results.json").write_text(json.dumps(results))
        if cost:
            (folder / "cost.json").write_text(json.dumps(cost))
        return folder

    def add_baseline(self, task, scores, examples=10, described=None):
        """Writes what the program without BERT writes."""
        folder = self.folder / "no_bert" / str(self.count)
        self.count += 1
        folder.mkdir(parents=True)
        name = task if task in TASKS else "custom"
        record = {
            "baseline": "words",
            "task": described or {"name": name},
            "data_name": task,
            "examples": examples,
        }
        (folder / "baseline.json").write_text(json.dumps(record))
        results = {f"eval_{name}": value for name, value in scores.items()}
        results.update(global_step=0, dev_data={})
        (folder / "eval_results.json").write_text(json.dumps(results))
        return folder
