"""Figures of runs."""

import math
import re
import shutil

import numpy as np
import pytest
import refusals
from conftest import ROOT, read_json, write_json
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

from adapter_bert.bert import encoder
from adapter_bert.commands import plot, plot_fusion
from adapter_bert.methods.composition import Composition
from adapter_bert.methods.registry import METHODS, parse
from adapter_bert.reports import collect_runs
from adapter_bert.training import fusion_report

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def many(fake):
    """Two tasks with full tuning, adapters of two sizes and top layers."""
    for task, base in (("rte", 0.5), ("qnli", 0.6)):
        for seed in (1, 2):
            for method, more, kept in (
                ("full", 0.1, 7000),
                ("houlsby(size=8)", 0.05, 100),
                ("houlsby(size=64)", 0.12, 1000),
                ("top_layers(k=1)", 0.0, 2000),
            ):
                scores = {"accuracy": base + more}
                fake.add(task, method, scores, seed=seed, kept=kept)
    return fake.settings()


def add_pair(fake, *tasks, **more):
    """Full tuning and adapters of each task."""
    for task in tasks:
        for method in ("full", "houlsby(size=8)"):
            fake.add(task, method, 0.5, kept=9, **more)


def draw(function, *arguments):
    figure = Figure(layout="constrained")
    assert function(figure, *arguments)
    return figure


def gaps(fake, column="middle"):
    """A column of the points of sizes, by their names."""
    points = plot.gaps(fake.settings())
    return dict(zip(points.title, points[column]))


def test_gaps_are_to_full_tuning_of_the_same_task(many, fake):
    points = gaps(fake)
    assert [*points] == [
        "houlsby(size=8)",
        "houlsby(size=64)",
        "top_layers(k=1)",
    ]
    assert [*points.values()] == pytest.approx([-5, 2, -10])


def test_only_sizes_that_all_tasks_have_are_drawn_in_their_order(fake):
    for task, sizes in (("rte", (64,)), ("qnli", (8, 64, 256))):
        fake.add(task, "full", 0.5, kept=7000)
        for size in sizes:
            method = f"houlsby(size={size})"
            fake.add(task, method, 0.5, kept=size)
    assert [*gaps(fake)] == ["houlsby(size=64)"]
    fake.add("rte", "houlsby(size=8)", 0.5, kept=8)
    shares = [*gaps(fake, "share").values()]
    assert shares == sorted(shares) and len(shares) == 2


def test_every_kind_of_tuning_has_a_style_of_its_own(fake):
    kinds = [
        f"{name}(a, b)" if issubclass(method, Composition) else name
        for name, method in METHODS.items()
    ]
    kinds[kinds.index("per_task(a, b)")] = "per_task(pals)"
    kinds[kinds.index("union(a, b)")] = "union(prefix, parallel)"
    for method in kinds:
        fake.add("rte", method, 0.5, kept=10)
    styles = plot.styles(fake.settings())
    assert set(styles) == set(kinds)
    assert len({str(style) for style in styles.values()}) == len(kinds)


def test_points_are_of_accuracy_where_there_is_one(fake):
    for method, score in (("full", 0.9), ("houlsby(size=8)", 0.8)):
        scores = {"matthews_correlation": score / 2, "accuracy": score}
        fake.add("cola", method, scores)
        scores = {"pearson": score / 3, "spearman": score}
        fake.add("sts-b", method, scores)
    # Percentiles lie between the two points.
    assert gaps(fake, "low")["houlsby(size=8)"] == pytest.approx(-26 / 3)
    assert gaps(fake, "high")["houlsby(size=8)"] == pytest.approx(-14 / 3)


def test_glue_and_other_tasks_have_a_panel_each(fake):
    add_pair(fake, "rte", "spam")
    figure = draw(plot.draw_trade_off, fake.settings())
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["GLUE", "other tasks"]
    # Each of one BERT.
    add_pair(fake, "qnli", bert="g")
    refusals.check(
        lambda: plot.draw_trade_off(Figure(), fake.settings()),
        "of different BERTs",
    )


def test_squad_1_and_2_have_a_panel_each(fake):
    fake.add("squad", "full", {"exact_match": 1.0, "f1": 2.0}, kept=9)
    scores = {"exact": 1.0, "f1": 2.0, "HasAns_f1": 3.0}
    fake.add("squad", "full", scores, kept=9)
    figure = draw(plot.draw_squad, fake.settings())
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["squad: f1", "squad 2.0: f1"]


def test_tasks_without_full_tuning_have_no_gap(fake):
    fake.add("rte", "houlsby(size=8)", 0.5, kept=10)
    assert not plot.draw_trade_off(Figure(), fake.settings())


def test_the_trade_off_shows_percentiles_over_tasks(fake):
    for i, gap in enumerate((0.0, 0.1, 0.2, 0.3, 0.4)):
        scores = {"accuracy": 0.5}
        fake.add(f"task{i}", "full", scores, kept=7000)
        scores = {"accuracy": 0.5 - gap}
        fake.add(f"task{i}", "houlsby(size=8)", scores, kept=100)
    [axes] = draw(plot.draw_trade_off, fake.settings()).axes
    heights = [line.get_ydata()[0] for line in axes.lines[:3]]
    # The median, then the 20th and 80th percentile.
    assert heights == pytest.approx([-20, -32, -8])


@pytest.mark.parametrize("shares", [(0.004, 0.24), (0.02, 0.08), (0.04, 0.08)])
def test_shares_of_parameters_are_plain_numbers(fake, tiny_config, shares):
    bert = sum(map(math.prod, encoder.list_variables(tiny_config).values()))
    fake.add("rte", "full", 0.5, kept=bert)
    for size, share in zip((8, 64), shares):
        method = f"houlsby(size={size})"
        kept = int(share * bert)
        fake.add("rte", method, 0.5, kept=kept)
    [axes] = draw(plot.draw_trade_off, fake.settings()).axes
    low, high = axes.get_xlim()
    shown = {
        text.get_text()
        for minor in (False, True)
        for text in axes.get_xticklabels(minor=minor)
        if low <= text.get_position()[0] <= high
    } - {""}
    assert all(re.fullmatch(r"\d+(\.\d+)?", text) for text in shown)
    assert shown >= ({"0.5", "2", "20"} if shares[0] < 0.01 else {"5"})


def test_each_task_has_a_panel_with_errors(many):
    figure = draw(plot.draw_per_task, many)
    assert [axes.get_title() for axes in figure.axes] == [
        "qnli: accuracy",
        "rte: accuracy",
    ]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.texts] == [
        "adapters",
        "top layers",
        "full fine-tuning",
    ]


def test_panels_without_a_task_are_left_out(fake):
    for i in range(5):
        fake.add(f"task{i}", "full", 0.5, kept=7000)
    assert len(draw(plot.draw_per_task, fake.settings()).axes) == 5


def test_initial_scales_are_compared_at_one_size(fake):
    for size, scale, score in (
        (8, 1e-7, 0.8),
        (8, 1e-2, 0.7),
        (8, 1.0, 0.5),
        (64, 1e-2, 0.9),
    ):
        method = f"houlsby(size={size}, init_scale={scale})"
        fake.add("rte", method, score)

    def drawn():
        [axes] = draw(plot.draw_init_scale, fake.runs()).axes
        [line, *_] = axes.lines
        assert line.get_xdata().tolist() == [1e-7, 1e-2, 1.0]
        assert line.get_ydata().tolist() == [80, 70, 50]
        return axes.get_legend_handles_labels()[1]

    assert drawn() == ["rte (accuracy), size 8, rate 0.001, 3 epochs"]
    # Of seeds that all scales have, under the same conditions only.
    fake.add("rte", "houlsby(8, init_scale=1.0)", 0.9, seed=2)
    fake.add("rte", "houlsby(8, init_scale=1e-3)", 1.0, rate=2)
    drawn()
    # Nor do other scales appear among the sizes.
    usual = collect_runs.of_usual_scale(fake.settings())
    assert usual["size"].tolist() == [8, 64]


def write_ablation(folder):
    scores = {"none": 0.8, "layers0-0": 0.7, "layers0-1": 0.5, "layers1-1": 0.8}
    for name, score in scores.items():
        run = folder / "runs" / name
        run.mkdir(parents=True)
        write_json(run / "eval_results.json", {"eval_accuracy": score})
    about = {"name": "rte", "task": "rte", "score": "accuracy", "layers": 2}
    write_json(folder / "ablation.json", about)


def test_an_ablation_is_points_lost_by_first_and_last_layer(tmp_path):
    write_ablation(tmp_path)
    ablations = plot.read_ablations([str(tmp_path)])
    grid, whole, score = ablations["rte"]
    assert_allclose(grid, [[70, 50], [np.nan, 80]])
    assert whole == 80 and score == "accuracy"
    other = {"eval_accuracy": 0.7, "dev_data": {"dev": "others"}}
    write_json(tmp_path / "runs/layers0-0/eval_results.json", other)
    refusals.check(
        lambda: plot.read_ablations([str(tmp_path)]), "different dev rows"
    )
    figure = draw(plot.draw_ablations, ablations)
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "-10.0",
        "-30.0",
        "0.0",
    ]
    assert plot.ablations_json(ablations) == {
        "rte": {
            "score": "accuracy",
            "all": 80.0,
            "without": {"0-0": 70.0, "0-1": 50.0, "1-1": 80.0},
        }
    }
    # Of many layers there is no room for decimals; none is "-0".
    grid = np.full((24, 24), np.nan)
    grid[0, :2] = 69.96, 68.7
    figure = draw(plot.draw_ablations, {"rte": (grid, 70.0, "accuracy")})
    assert [x.get_text() for x in figure.axes[0].texts] == ["0", "-1"]


def test_ablations_of_one_name_are_all_drawn_each_once(tmp_path):
    for name in ("a", "b", "c"):
        write_ablation(tmp_path / name / "ablation")
    ablations = plot.read_ablations([str(tmp_path), str(tmp_path / "b")])
    assert list(ablations) == [
        "rte",
        f"rte ({tmp_path}/b/ablation)",
        f"rte ({tmp_path}/c/ablation)",
    ]


def test_missing_spans_are_told_and_an_ablation_without_any_left_out(
    tmp_path, capsys
):
    write_ablation(tmp_path)
    (tmp_path / "runs/layers0-1/eval_results.json").unlink()
    assert "rte" in plot.read_ablations([str(tmp_path)])
    assert "lacks 1 of 3 spans" in capsys.readouterr().err
    for name in ("layers0-0", "layers1-1"):
        (tmp_path / f"runs/{name}/eval_results.json").unlink()
    assert plot.read_ablations([str(tmp_path)]) == {}


@pytest.mark.gate
def test_figures_are_written_as_png_and_svg_and_always_alike(
    many, fake, tmp_path, run_main
):
    del many
    write_ablation(tmp_path / "ablation")
    contents = []
    for name in ("one", "two"):
        out = tmp_path / name
        run_main(plot, fake.folder, tmp_path, f"--output_dir={out}")
        contents.append({p.name: p.read_bytes() for p in out.iterdir()})
    others = {"ablation_scores.json", "files_of_plot.json"}
    assert set(contents[0]) == others | {
        f"{name}.{kind}"
        for name in ("ablation", "per_task", "trade_off")
        for kind in ("png", "svg")
    }
    assert contents[0] == contents[1]
    shutil.rmtree(tmp_path / "ablation")
    plot.main()
    left = {path.name for path in (tmp_path / "two").iterdir()}
    assert left == {n for n in contents[0] if not n.startswith("ablation")}


def test_nothing_to_draw_is_refused(run_main):
    arguments = plot, ROOT / "data", "--output_dir=x"
    refusals.check(lambda: run_main(*arguments), "no run in")


def test_shares_are_means_over_rows(tiny_config):
    attention = np.array([[[0.25, 0.75]], [[0.75, 0.25]], [[0.2, 0.8]]])
    method = parse(
        "fusion({'a': pfeiffer(size=4), 'b': pfeiffer(size=8)}, first=1)"
    )
    shares = fusion_report.shares(method, tiny_config, attention)
    assert shares["adapters"] == ["a", "b"]
    assert shares["places"] == [[1, "ffn"]]
    assert_allclose(shares["weights"], [[0.4, 0.6]])


def test_equal_numbers_give_equal_bytes():
    shown = {
        "adapters": ["a", "b"],
        "places": [[0, "attention"], [0, "ffn"]],
        "weights": [[0.1, 0.9], [0.7, 0.3]],
    }
    first, second = (fusion_report.heatmaps({"t": shown}) for _ in range(2))
    assert first == second
    other = {**shown, "weights": [[0.2, 0.8], [0.7, 0.3]]}
    assert fusion_report.heatmaps({"t": other}) != first


def add_fusion(fake, task, seed, weights, score, rate=1e-3, adapters="ab"):
    folder = fake.add(task, "fusion(a, b)", score, rate=rate, seed=seed)
    shown = {
        "adapters": list(adapters),
        "places": [[0, "ffn"]],
        "weights": [weights],
    }
    write_json(folder / "fusion_attention.json", shown)


def test_each_task_has_the_mean_of_its_best_rate(fake, tmp_path, run_main):
    add_fusion(fake, "rte", 1, [0.2, 0.8], 0.5)
    add_fusion(fake, "rte", 2, [0.4, 0.6], 0.6)
    for seed in (1, 2):
        add_fusion(fake, "rte", seed, [0.9, 0.1], 0.4, rate=1e-2)
    add_fusion(fake, "spam", 1, [1.0, 0.0], 0.9)
    fake.add("spam", "full", 1.0)
    run_main(plot_fusion, fake.folder, f"--output_dir={tmp_path}/out")
    out = tmp_path / "out" / "fusion_attention"
    panels = read_json(out.with_suffix(".json"))
    assert_allclose(panels["rte"]["weights"], [[0.3, 0.7]])
    assert panels["rte"]["runs"] == 2
    assert panels["spam"]["weights"] == [[1.0, 0.0]]
    assert out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    # A run's own is not written over.
    folder = next(fake.folder.rglob("fusion_attention.json")).parent
    refusals.check(
        lambda: run_main(plot_fusion, fake.folder, f"--output_dir={folder}"),
        "the list of what plot_fusion wrote",
    )


def test_fusions_that_cannot_be_drawn_are_refused(fake, run_main):
    fake.add("rte", "full", 1.0)

    def call():
        run_main(plot_fusion, fake.folder, "--output_dir=x")

    refusals.check(call, "no fusion in")
    add_fusion(fake, "rte", 1, [0.2, 0.8], 0.5)
    add_fusion(fake, "rte", 2, [0.2, 0.8], 0.5, adapters="ac")
    refusals.check(call, "are of different adapters; expected")
