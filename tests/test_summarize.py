"""Tables of runs."""

import csv
import math

import pandas
import pytest
import refusals
from conftest import read_json, write_json
from tensorboard.backend.event_processing import event_accumulator

from adapter_bert.bert import encoder
from adapter_bert.commands import summarize
from adapter_bert.methods.registry import parse
from adapter_bert.reports import collect_runs

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def bert(tiny_config):
    """How many parameters the tiny BERT has."""
    return sum(map(math.prod, encoder.list_variables(tiny_config).values()))


def edit_run(folder, **members):
    """Changes members of `run.json`."""
    run = read_json(folder / "run.json")
    for name, values in members.items():
        run[name].update(values)
    write_json(folder / "run.json", run)


def glue_rows(fake):
    table = summarize.glue_table(fake.settings(), 64, {})
    return table.to_dict("index")


def test_runs_that_differ_in_the_seed_are_one_setting(fake):
    for seed, accuracy in ((1, 0.8), (2, 0.9), (3, 0.7)):
        scores = {"accuracy": accuracy, "loss": 0.5}
        fake.add("rte", "houlsby(size=8)", scores, seed=seed)
    for other in ({"epochs": 20}, {"batch_size": 16}):
        fake.add("rte", "houlsby(size=8)", 0.1, **other)
    fake.add("rte", "houlsby(size=64)", 0.1)
    settings = fake.settings()
    assert settings.seeds.tolist() == [3, 1, 1, 1]
    first, other, *_ = settings.to_dict("records")
    assert first["mean accuracy"] == pytest.approx(80)
    # The standard deviation 10 over the root of 3.
    assert first["error accuracy"] == pytest.approx(10 / math.sqrt(3))
    assert first["mean loss"] == 0.5
    assert first["seed"] == [1, 2, 3]
    assert math.isnan(other["error accuracy"])
    shown = settings.apply(collect_runs.show_score, axis=1, score="accuracy")
    assert shown.tolist() == ["80.0 ± 5.8 (3)", "10.0", "10.0", "10.0"]


def test_all_shares_are_in_points():
    names = [
        *("masked_lm_accuracy", "next_sentence_accuracy", "macro_roc_auc"),
        *("macro_average_precision", "label_ranking_average_precision"),
    ]
    assert collect_runs.FRACTIONS >= set(names)


def test_a_run_that_is_there_twice_counts_once(fake, capsys):
    for score in (0.5, 0.5, 0.6):
        fake.add("rte", "full", score)
    settings = fake.settings()
    assert settings["mean accuracy"].tolist() == [50]
    assert settings.seeds.tolist() == [1]
    assert capsys.readouterr().err.count("with other scores") == 1
    # The same fusion of other adapters, and another dropout, are others.
    edit_run(
        fake.add("rte", "full", 0.7), bert_config={"hidden_dropout_prob": 0}
    )
    folder = fake.add("rte", "full", 0.8)
    write_json(
        folder / "run.json",
        {**read_json(folder / "run.json"), "parts": {"a": "0" * 64}},
    )
    assert fake.settings()["mean accuracy"].tolist() == [50, 70, 80]


def test_what_latex_would_read_is_escaped():
    text = summarize.to_latex("", pandas.DataFrame({"": ["a$b_{c}^2~"]}, ["r"]))
    assert r"a\$b\_\{c\}\^{}2\~{}" in text


def test_runs_behind_links_are_read_once(fake, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    fake.add("rte", "full", 0.5).rename(elsewhere / "run")
    # Where sweeps link to their tasks, other runs may lie.
    fake.add("rte", "full", 0.6, seed=2).rename(elsewhere / "task")
    (elsewhere / "task" / "train.tsv").touch()
    (fake.folder / "data").mkdir()
    for name, target in {
        "moved": elsewhere / "run",
        "round": fake.folder,
        "data/rte": elsewhere / "task",
    }.items():
        (fake.folder / name).symlink_to(target)
    assert len(fake.runs()) == 1


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"bert": "g"}, "BERT"),
        ({"data": "more rows"}, "training data"),
        ({"dev": "other rows"}, "dev data"),
    ],
)
def test_runs_on_other_data_are_not_compared(fake, other, what):
    first = fake.add("rte", "full", 0.6)
    second = fake.add("rte", "houlsby(8)", 0.9, **other)
    refusals.check(fake.settings, first, second, f"differ in their {what} (")


def test_thresholds_of_the_dev_rows_make_other_scores(fake):
    first = fake.add("rte", "full", 0.6)
    second = fake.add("rte", "full", 0.9, seed=2)
    (second / "label_thresholds.json").write_text("{}")
    refusals.check(fake.settings, first, second, "fitted thresholds (")


def test_there_is_no_mean_over_different_berts(fake):
    fake.add("rte", "full", 0.6)
    fake.add("qnli", "full", 0.9, bert="g")
    settings = fake.settings()
    for call in (
        lambda: summarize.methods_table(settings),
        lambda: summarize.glue_table(settings, 64, {}),
    ):
        refusals.check(call, "of different BERTs")


def test_own_tasks_are_named_by_their_data(fake):
    for task in ("spam", "squad (custom)", "rte (custom)"):
        fake.add(task, "full", 0.5, parent="out")
    fake.add("rte", "full", 0.7)
    for rate, score in ((1e-3, 0.4), (1e-4, 0.5)):
        # Vectors are chosen by their first score, tags by F1.
        vectors = {"spearman": score, "pearson": 0.9 - score, "ndcg_of_8": 1}
        fake.add("sts-b (custom)", "full", vectors, rate=rate, kind="vectors")
        tags = {"f1": score, "token_accuracy": 1 - score, "loss": 2.0}
        fake.add("squad (custom)", "full", tags, rate=rate, kind="tagging")
    settings = fake.settings()
    means = settings.set_index("task").filter(like="mean ")
    assert means["mean ndcg_of_8"]["sts-b (vectors)"].tolist() == [100, 100]
    tagged = means.loc["squad (tagging)"]
    assert tagged["mean token_accuracy"].tolist() == [60, 50]
    assert tagged["mean loss"].tolist() == [2, 2]
    rows = glue_rows(fake)
    assert rows["full fine-tuning"]["RTE (acc.)"] == "70.0"
    others = summarize.other_table(settings, {})["full fine-tuning"]
    assert set(others[:-3].items()) == {
        (name, "50.0")
        for name in ("spam", "rte (custom)", "sts-b (vectors)")
        + ("squad (custom)", "squad (tagging)")
    }
    assert summarize.squad_table(settings) is None


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("houlsby", None, "houlsby(size=64)"),
        ("houlsby(8, init_scale=0.1)", None, "houlsby(size=8, init_scale=0.1)"),
        (
            "houlsby(sites=ffn, size=8)",
            "houlsby(sites='ffn')",
            "houlsby(size=8, sites='ffn')",
        ),
        ("top_layers(k=3)", None, "top_layers(k=3)"),
        ("lora(16, alpha=2.0)", "lora(alpha=2.0)", "lora(rank=16, alpha=2.0)"),
        ("lt_sft(sparsity=0.1)", None, "lt_sft(sparsity=0.1)"),
        (
            "adapterdrop(first=2, size=8, robust=true)",
            "adapterdrop(robust=True)",
            "adapterdrop(first=2, size=8, robust=True)",
        ),
        ("full", None, "full"),
    ],
)
def test_a_kind_is_a_method_without_its_sizes(text, kind, name):
    method = parse(text)
    short = collect_runs.text_of(method, with_sizes=False)
    assert short == (kind or text.partition("(")[0])
    assert collect_runs.text_of(method) == name


def test_wnli_is_shown_but_no_part_of_the_mean(fake):
    fake.add("rte", "full", 0.6, kept=10)
    fake.add("wnli", "full", 0.2, kept=10)
    [row] = glue_rows(fake).values()
    assert (row["WNLI (acc.)"], row["mean"]) == ("20.0", "60.0")


def test_what_has_fewer_seeds_is_not_chosen(fake):
    for seed, rate, score in ((1, 1, 0.6), (2, 1, 0.6), (1, 2, 0.9)):
        fake.add("rte", "full", score, rate=rate, seed=seed)
    chosen = collect_runs.best(fake.settings(), "accuracy")
    assert chosen["mean accuracy"] == 60


def test_other_initial_scales_are_not_chosen(fake):
    for scale, score in ((1e-2, 0.6), (1e-4, 0.9)):
        method = f"houlsby(size=64, init_scale={scale})"
        fake.add("rte", method, score)
    rows = glue_rows(fake)
    assert rows["adapters, best size"]["RTE (acc.)"] == "60.0"
    # Unless most have another.
    fake.add("mrpc", "houlsby(size=64, init_scale=0.001)", {"f1": 0.7})
    fake.add("mrpc", "full", {"f1": 0.8})
    rows = glue_rows(fake)
    assert rows["adapters, best size"]["MRPC (F1)"] == "70.0"


def test_first_phases_and_unfinished_runs_are_no_runs(fake, capsys):
    folder = fake.add("rte", "full", 0.5)
    (folder / "phase_1").mkdir()
    for name in ("run.json", "eval_results.json"):
        (folder / "phase_1" / name).write_text((folder / name).read_text())
    other = fake.add("rte", "full", 0.5, seed=2)
    (other / "eval_results.json").unlink()
    # Evaluated in the middle of its training.
    fake.add("rte", "full", 0.9, seed=3, step=2)
    together = fake.add("rte", "full", 0.9, seed=4)
    edit_run(together, training={"trained_together": ["cola", "rte"]})
    assert len(collect_runs.find_runs([str(fake.folder)])) == 1
    assert "3 runs that are not finished" in capsys.readouterr().err


def test_table_1_has_the_best_size_the_fixed_one_and_full_tuning(fake, bert):
    """Variants are not taken for the paper's adapters."""
    for size, score in ((8, 0.55), (64, 0.52), (256, 0.5)):
        kept = size * 10
        scores = {"matthews_correlation": score, "accuracy": 0.9}
        fake.add("cola", f"houlsby(size={size})", scores, kept=kept)
        scores = {"accuracy": 0.6, "accuracy_mismatched": score}
        fake.add("mnli", f"houlsby(size={size})", scores, kept=kept)
    # The rate is chosen by the mean over seeds, not by the best seed.
    for rate, seeds in ((1e-3, (0.5, 0.6)), (1e-4, (0.7, 0.3))):
        for seed, score in enumerate(seeds):
            scores = {"matthews_correlation": score, "accuracy": 0.9}
            fake.add("cola", "full", scores, rate=rate, seed=seed, kept=bert)
    variant = "houlsby(size=64, sites=ffn)"
    fake.add("cola", variant, {"matthews_correlation": 0.8}, kept=640)
    rows = glue_rows(fake)
    names = ["full fine-tuning", "adapters, best size", "adapters, size 64"]
    assert list(rows) == [*names, "houlsby(sites='ffn')"]
    full, best, fixed, _ = rows.values()
    assert full["CoLA (Matthews)"] == "55.0 ± 5.0 (2)"
    assert full["MNLI-m (acc.)"] == "-"
    assert (full["parameters"], full["of a task"]) == ("1.00×", "100.00%")
    assert best["CoLA (Matthews)"] == "55.0"
    assert fixed["CoLA (Matthews)"] == "52.0"
    # Both of MNLI's are of the first of equal settings.
    assert (best["MNLI-m (acc.)"], best["MNLI-mm (acc.)"]) == ("60.0", "55.0")
    assert fixed["MNLI-mm (acc.)"] == "52.0"
    share = 640 / bert
    # Of CoLA alone, which all have.
    assert fixed["parameters"] == f"{1 + share:.2f}×"
    assert fixed["of a task"] == f"{100 * share:.2f}%"
    # Over CoLA alone, which all have.
    means = [row["mean"] for row in rows.values()]
    assert means == ["55.0", "55.0", "52.0", "80.0"]


def test_table_2_has_a_row_for_each_task_and_totals(fake, bert):
    for task, adapters, full in (("spam", 0.99, 0.98), ("reviews", 0.7, 0.8)):
        fake.add(task, "houlsby(size=8)", adapters, kept=100)
        fake.add(task, "full", full, kept=bert)
    fake.add("spam", "top_layers(k=1)", 0.9, kept=1000)
    table = summarize.other_table(fake.settings(), {})
    share = 100 / bert
    lines = table.to_csv(index_label="").splitlines()
    assert list(csv.reader(lines)) == [
        ["", *summarize.ROWS.values()][:-1],
        ["reviews", "80.0", "70.0", "-"],
        ["spam", "98.0", "99.0", "90.0"],
        ["mean", "89.0", "84.5", "-"],
        ["parameters", "2.00×", f"{1 + 2 * share:.2f}×", "-"],
        ["of a task", "100.00%", f"{share:.2%}", "-"],
    ]


def test_question_answering_has_a_row_for_each_method(fake):
    for rate, f1 in ((1e-3, 50.0), (1e-4, 60.0)):
        for scores in (
            {"exact_match": f1 - 10, "f1": f1},
            {"exact": f1 - 20, "f1": f1 - 5, "HasAns_f1": 60.0},
        ):
            method = "houlsby(size=8)"
            fake.add("squad", method, scores, rate=rate, kept=100)
    assert summarize.methods_table(fake.settings()) is None
    rows = summarize.squad_table(fake.settings())
    assert [*rows.index] == ["houlsby(size=8)", "houlsby(size=8), SQuAD 2.0"]
    assert rows.iloc[:, 1:].to_numpy().tolist() == [
        ["0.0001", "3", "50.0", "60.0"],
        ["0.0001", "3", "40.0", "55.0"],
    ]


def test_methods_are_shown_with_what_they_keep_and_cost(fake, bert, capsys):
    cost = {
        "resumed": False,
        "seconds": 99.0,
        "processor_seconds": 60.0,
        "peak_memory_bytes": 2**30,
    }
    for task, kept in (("rte", 100), ("spam", 300)):
        fake.add(task, "lt_sft", 0.6, kept=kept, cost=cost)
        resumed = {**cost, "resumed": task == "spam"}
        fake.add(task, "full", 0.7, kept=bert, cost=resumed)
    fake.add("rte", "ia3", 0.9, cost=cost)
    # Other models, whose parameters are no part of this.
    fake.add("squad", "full", {"exact_match": 1.0, "f1": 2.0}, bert="g")
    rows = summarize.methods_table(fake.settings()).to_dict("index")
    left_out = "ia3 is left out of `methods`, for it lacks spam"
    assert left_out in capsys.readouterr().err
    assert set(rows) == {"lt_sft(sparsity=0.01)", "full"}
    assert list(rows["lt_sft(sparsity=0.01)"].values()) == [
        "0.001",
        f"200 ({200 / bert:.2%})",
        "60.0",
        "60.0",
        "60.0",
        "2.0 min",
        "1.00 GiB",
    ]
    # What a resumed run took is not known.
    assert list(rows["full"].values())[-2:] == ["-", "-"]


def test_all_forms_hold_the_same_cells():
    table = pandas.DataFrame({"a_b": {"x": "1.0 ± 0.2 (3)"}})
    assert summarize.to_markdown("T", table) == (
        "T\n\n|  | a_b |\n| --- | --- |\n| x | 1.0 ± 0.2 (3) |\n"
    )
    latex = summarize.to_latex("T", table)
    assert r"x & 1.0 $\pm$ 0.2 (3) \\" in latex and r" & a\_b \\" in latex


@pytest.mark.gate
def test_the_script_writes_tables_settings_and_hparams(
    fake, tmp_path, run_main, capsys
):
    for seed in (1, 2):
        scores = {"accuracy": seed / 4, "loss": 1.0}
        fake.add("rte", "houlsby(size=8)", scores, seed=seed, kept=100)
    out = tmp_path / "summary"
    # Twice: what is there is replaced.
    for _ in range(2):
        run_main(summarize, fake.folder, f"--output_dir={out}")
    tables = [
        f"{table}.{ending}"
        for table in ("glue", "methods")
        for ending in ("md", "tex", "csv")
    ]
    assert {path.name for path in out.iterdir()} == {
        *tables,
        "files_of_summarize.json",
        "hparams",
        "settings.json",
    }
    assert "37.5 ± 12.5 (2)" in capsys.readouterr().out
    [setting] = read_json(out / "settings.json")
    assert setting["seeds"] == {
        "1": {"accuracy": 25.0, "loss": 1.0},
        "2": {"accuracy": 50.0, "loss": 1.0},
    }
    # Of each trial there is one.
    assert len(list((out / "hparams").glob("*/*"))) == 2
    trials = sorted((out / "hparams").iterdir())
    assert len(trials) == 2
    events = event_accumulator.EventAccumulator(str(trials[0]))
    events.Reload()
    plugin = events.summary_metadata["_hparams_/session_start_info"]
    assert plugin.plugin_data.plugin_name == "hparams"


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_folder_without_runs_is_refused(tmp_path, run_main, name):
    arguments = summarize, tmp_path / name, f"--output_dir={tmp_path}/out"
    refusals.check(lambda: run_main(*arguments), tmp_path / name)


def test_a_run_that_came_to_its_best_step_counts(fake):
    folder = fake.add("rte", "full", 0.6)
    edit_run(folder, training={"keep_best": "accuracy"})
    assert collect_runs.read_run(folder) is None
    scores = {"5": {"accuracy": 0.5}, "3": {"accuracy": 0.6}}
    kept = {"keep_best": "accuracy", "scores": scores}
    write_json(folder / "dev_scores.json", kept)
    assert collect_runs.read_run(folder)["scores"]["accuracy"] == 60.0
    # The scores are of another step than the best.
    scores["7"] = {"accuracy": 0.7}
    write_json(folder / "dev_scores.json", kept)
    assert collect_runs.read_run(folder) is None
