"""Writes folders of runs without training, for tables and figures."""

import dataclasses

from conftest import write_json
from html_reader import Page

from adapter_bert.reports import collect_runs
from adapter_bert.tasks.kinds import TASKS


class FakeRuns:
    """Writes runs below a folder."""

    def __init__(self, folder, config):
        self.folder = folder
        self.config = config
        self.count = 0

    def runs(self):
        """All runs, a row each."""
        return collect_runs.find_runs([str(self.folder)])

    def settings(self):
        """The settings, as tables and figures get them."""
        return collect_runs.settings_of(self.runs())

    def report(self, folder, earlier=""):
        """The page of a run's or a sweep's report, which is checked."""
        # Slow to load.
        from adapter_bert.commands import report

        path = self.folder.parent / "page.html"
        report.write_report(str(folder), str(path), str(earlier))
        page = Page(path.read_text())
        page.check()
        return page

    def _write(self, folder, file, description, scores, **results):
        """Writes a description, and scores with `eval_`."""
        self.count += 1
        folder.mkdir(parents=True)
        write_json(folder / file, description)
        results.update((f"eval_{name}", x) for name, x in scores.items())
        write_json(folder / "eval_results.json", results)

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
        """Writes a run; `scores` without `eval_`, or the accuracy alone."""
        if not isinstance(scores, dict):
            scores = {"accuracy": scores}
        folder = self.folder / (parent or task) / str(self.count)
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
        data = {"dev": dev}
        self._write(
            folder,
            "run.json",
            description,
            scores,
            global_step=step,
            dev_data=data,
        )
        if cost:
            write_json(folder / "cost.json", cost)
        return folder

    def add_baseline(self, task, scores, examples=10, described=None):
        """Writes what the program without BERT writes."""
        folder = self.folder / "no_bert" / str(self.count)
        name = task if task in TASKS else "custom"
        record = {
            "baseline": "words",
            "task": described or {"name": name},
            "data_name": task,
            "examples": examples,
        }
        self._write(
            folder, "baseline.json", record, scores, global_step=0, dev_data={}
        )
        return folder
