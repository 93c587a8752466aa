"""Which runs are in grids of sweeps, and which commands are refused."""

import collections
import shlex

import pytest
from conftest import read_lines, run_command, write_table
from sweep_stand_in import RUNS, SCRIPTS, SMALL, counts

from adapter_bert.methods.composition import Composition
from adapter_bert.methods.new_words import NewWords
from adapter_bert.methods.registry import METHODS, parse

pytestmark = pytest.mark.newer_stack


def test_the_default_grid_is_the_papers(sweep, folders):
    small = {axis: sweep.environment.pop(axis) for axis in SMALL}
    for task in "CoLA MRPC STS-B QQP MNLI QNLI".split():
        folders(f"glue/{task}")
    done = sweep.run("--grid", TASKS=small.pop("TASKS").split()[0])
    assert len(sweep.rows(done)) == 3 * 3 * 2 * 5
    assert "sbatch --array=1-90 scripts/sweep.sbatch" in done.stdout
    # Of two sizes.
    assert len(sweep.rows(sweep.run("--grid", **small))) == 8 * 2
    assert sweep.started() == []


@pytest.mark.gate
def test_a_long_grid_is_several_arrays(sweep):
    done = sweep.run("--grid", SEEDS=" ".join(map(str, range(501))))
    command = f"scripts/sweep.sbatch {sweep.out}"
    assert done.stdout.splitlines()[1:] == [
        f"sbatch --array=1-1000 {command}",
        f"sbatch --array=1-1000 {command} 1000",
        f"sbatch --array=1-4 {command} 2000",
    ]


def test_a_row_is_a_command_that_can_be_copied(sweep):
    sweep.run("--grid", "--", "--compute_dtype=bfloat16", METHODS="houlsby")
    row = sweep.rows()[1]
    name, command, flags = row.split("\t")
    assert name == RUNS[1]
    python, *words = shlex.split(command)
    assert python == sweep.environment["PYTHON"]
    assert words[0] == "run_classifier.py"
    others = [word for word in words if "--output_dir=" not in word]
    assert shlex.split(flags) == others
    assert {
        "--task_name=RTE",
        f"--data_dir={sweep.folder}/glue/RTE",
        "--tuning_method=houlsby",
        "--adapter_size=4",
        "--learning_rate=1e-3",
        "--num_train_epochs=1",
        "--seed=1",
        f"--output_dir={sweep.name(name)}",
        "--compute_dtype=bfloat16",
    } <= set(words)


def test_methods_have_the_axes_that_they_need(sweep):
    sweep.run(
        "--grid",
        METHODS="full top_layers ia3 pfeiffer(layers=1) bapna(size=4) "
        "pfeiffer(sizes='1:4')",
        SIZES="8",
        LAYERS="1 2",
        FULL_RATES="2e-5",
        TASKS="RTE",
    )
    rows = sweep.rows()
    assert [row.split("\t")[0] for row in rows] == [
        "RTE/full-lr2e-5-epochs3-seed1",
        "RTE/top_layers1-lr2e-5-epochs3-seed1",
        "RTE/top_layers2-lr2e-5-epochs3-seed1",
        "RTE/ia3-lr1e-3-epochs1-seed1",
        "RTE/pfeiffer(layers=1)8-lr1e-3-epochs1-seed1",
        "RTE/bapna(size=4)-lr1e-3-epochs1-seed1",
        "RTE/pfeiffer(sizes='1:4')-lr1e-3-epochs1-seed1",
    ]
    words = shlex.split(rows[2].split("\t")[1])
    assert "--tuning_method=top_layers(k=2)" in words


def test_squad_has_a_grid_of_its_own(sweep):
    def run():
        folder = sweep.folder
        return sweep.run_script("sweep_squad.sh", "--grid", SQUAD_DIR=folder)

    (sweep.folder / "train-v1.1.json").touch()
    missing = sweep.folder / "dev-v1.1.json"
    assert f"{missing}, where there is no file: PREDICT_FILE" in run().stderr
    missing.touch()
    rows = sweep.rows(run())
    # Adapters: 3 sizes x 4 rates x 3 epochs x 3 seeds; full: 3 x 3 x 3.
    assert len(rows) == 108 + 27
    assert all("run_squad.py --train_file=" in row for row in rows)


def test_tagging_has_a_grid_of_its_own(sweep):
    def run(folder=sweep.folder / "glue", **axes):
        return sweep.run_script(
            "sweep_tagging.sh", "--grid", NER_DIR=folder, **axes
        )

    assert "where there is no folder: the data" in run(TASKS="de").stderr
    rows = sweep.rows(run(TASKS="RTE"))
    # Adapters: 3 sizes x 3 rates x 3 seeds; full and head: 3 rates x 3 seeds.
    assert len(rows) == 27 + 9 + 9
    folder = sweep.folder / "glue" / "RTE"
    assert f"run_tagger.py --data_dir={folder} " in rows[0]
    assert rows[0].startswith("RTE/houlsby8-lr1e-4-epochs5-seed1\t")
    # Runs are called by their folders.
    done = run(TASKS="RTE ../glue/RTE")
    assert done.returncode == 1
    assert "error: TASKS has two folders called RTE" in done.stderr
    rows = sweep.rows(run(folder, METHODS="head", SEEDS="1", RATES="1"))
    assert [row.split("\t")[0] for row in rows] == [
        "RTE/head-lr1-epochs5-seed1"
    ]


@pytest.mark.parametrize(
    "tasks, names",
    [
        ("'my task' RTE", ["my task", "RTE"]),
        ('RTE\n  "my task"\t"my task/in it"', ["RTE", "my task", "in it"]),
        (r"my\ task", ["my task"]),
        ("'caf\xe9 \u732b'", ["caf\xe9 \u732b"]),
        ('"it\'s" $(x)', ["it's", "$(x)"]),
    ],
)
@pytest.mark.parametrize("script", ["sweep_glue.sh", "sweep_tagging.sh"])
def test_a_task_s_folder_may_have_a_blank_in_its_name(
    sweep, script, tasks, names
):
    glue = sweep.folder / "glue"
    for name in ("my task/in it", "caf\xe9 \u732b", "it's", "$(x)"):
        (glue / name).mkdir(parents=True)
    if script == "sweep_glue.sh":
        names = ["my task/in it" if name == "in it" else name for name in names]
    done = sweep.run_script(
        script,
        "--grid",
        GLUE_DIR=glue,
        NER_DIR=glue,
        METHODS="head",
        RATES=1,
        EPOCHS=1,
        SEEDS=1,
        TASKS=tasks,
    )
    rows = sweep.rows(done)
    assert [row.split("\t")[0] for row in rows] == [
        f"{name}/head-lr1-epochs1-seed1" for name in names
    ]
    for name, row in zip(names, rows):
        command = f"printf '%s\\n' {row.split(chr(9))[1]}"
        lines = run_command("bash", "-c", command).stdout.splitlines()
        inner = "my task/in it" if name == "in it" else name
        assert f"--data_dir={glue / inner}" in lines
        assert (
            f"--output_dir={sweep.name(name)}/head-lr1-epochs1-seed1" in lines
        )


def test_a_run_s_name_may_have_a_blank(sweep):
    (sweep.folder / "my glue" / "my task").mkdir(parents=True)
    (sweep.folder / "my bert").touch()
    sweep.out = sweep.folder / "my out"
    sweep.environment["GLUE_DIR"] = str(sweep.folder / "my glue")
    done = sweep.succeed(TASKS="'my task'", BERT=str(sweep.folder / "my bert"))
    assert counts(done.stdout)["finished"] == 2
    runs = [f"my task/houlsby{n}-lr1e-3-epochs1-seed1" for n in (2, 4)]
    assert sweep.started() == [str(sweep.name(run)) for run in runs]
    assert counts(sweep.run("--status").stdout)["finished"] == 2


@pytest.mark.parametrize(
    "arguments, environment, expected",
    [
        ((), {}, "usage: BERT="),
        (("out", "--jobs", "0"), {}, "error: --jobs 0, expected a number"),
        (("out", "--", "--seed=7"), {}, "error: --seed is given after --"),
        (("out", "--", "--epochs=1"), {}, "error: --epochs is given after"),
        (("out", "--", "--num_train_steps=1"), {}, "_steps is given after --"),
        (("out", "--", "--flagfile=x"), {}, "error: --flagfile is given after"),
        (("o[6]",), {}, "o[6]; TensorFlow finds no checkpoint under a name"),
        (("out",), {"PYTHON": "/no/python"}, "error: there is no interpreter"),
        (("out",), {"BERT": "no/bert"}, "error: BERT is no/bert, where there"),
        (("out",), {"GLUE_DIR": "none"}, "error: GLUE_DIR is none, where"),
        (("out",), {"TASKS": "RTE MNLI"}, "/glue/MNLI, where there is no"),
        (("out",), {"TASKS": " "}, "error: the grid has no run; is one of"),
        (("out",), {"METHODS": "lora(rank=8, alpha=1)"}, "'lora(rank=8,'; wr"),
    ],
)
def test_a_wrong_command_is_refused(sweep, arguments, environment, expected):
    done = run_command(
        SCRIPTS / "sweep_glue.sh",
        *arguments,
        env={**sweep.environment, **environment},
        cwd=sweep.folder,
    )
    assert done.returncode == 1
    assert expected in done.stderr
    assert not (sweep.folder / "out").exists()


def test_odd_paths_are_found_and_those_of_a_cloud_left_alone(sweep):
    odd = sweep.folder / "[v1] it's donn\u00e9es\\"
    odd.mkdir()
    (odd / "model.safetensors").touch()
    sweep.succeed("--grid", BERT=str(odd / "model.s"), LC_ALL="C")
    # A handle of Kaggle's is no local path, nor is a model's name.
    handle = "tensorflow/bert/tensorFlow2/en-uncased-l-12-h-768-a-12/3"
    for name in (handle, "minilm", "hf:google-bert/bert-base-uncased"):
        sweep.succeed("--grid", BERT=name)
        grid = (sweep.out / "grid.tsv").read_text()
        assert f"--init_checkpoint={name} " in grid
    sweep.run("--grid", BERT="gs://bucket/bert", GLUE_DIR="gs://bucket/glue")
    row = sweep.rows()[0]
    assert " --init_checkpoint=gs://bucket/bert " in row
    assert " --data_dir=gs://bucket/glue/RTE " in row
    sweep.out = "gs://bucket/sweep"
    assert "expected a folder of this machine" in sweep.refused("--grid")


def test_the_comparison_has_every_method_on_every_task(sweep, folders):
    for task in ("MRPC", "CoLA"):
        folders(f"glue/{task}")
    for split, count in (("train", 5000), ("dev", 1)):
        path = sweep.folder / f"glue/SST-2/{split}.tsv"
        write_table(path, [("a", "1")] * count, ("sentence", "label"))
    done = run_command(
        SCRIPTS / "compare_methods.sh",
        sweep.out,
        "--grid",
        env=sweep.environment,
    )
    by_method, names = collections.defaultdict(list), set()
    rows = sweep.rows(done)
    for row in rows:
        name, command, cost = row.split("\t")
        words = shlex.split(command)[2:]
        flags = dict(word[2:].split("=", 1) for word in words)
        assert name.startswith(f"{flags['task_name']}/")
        by_method[flags["task_name"]].append(parse(flags["tuning_method"]))
        names.add(name)
        # Data below OUTPUT_DIR moves with it.
        is_part = flags["task_name"] == "SST-2"
        assert ("=OUTPUT_DIR/data/SST-2 " in cost) == is_part
        assert str(sweep.out) not in cost
    assert len(names) == len(rows)
    assert set(by_method) == {"MRPC", "RTE", "CoLA", "SST-2"}
    for methods in by_method.values():
        assert methods == by_method["RTE"]
        # Other compositions are of several adapters or tasks, new words of a
        # text.
        assert {method.name for method in methods} == {
            name
            for name, method in METHODS.items()
            if not issubclass(method, (Composition, NewWords))
            or name == "union"
        }
    part = sweep.out / "data/SST-2/train.tsv"
    assert len(read_lines(part)) == 4001


def test_vectors_are_compared_on_questions_too(sweep, folders):
    for task in ("MRPC", "STS-B"):
        folders(f"glue/{task}")
    for split in ("train", "dev"):
        (sweep.folder / f"{split}.json").write_text("{}")
    sweep.environment.update(TRAIN_FILE="train.json", DEV_FILE="dev.json")
    sweep.environment.update(TASKS="STS-B MRPC SQuAD", SQUAD_DIR="")

    def run(**changes):
        return run_command(
            SCRIPTS / "compare_vectors.sh",
            sweep.out,
            "--grid",
            env={**sweep.environment, **changes},
        )

    done = run()
    assert done.returncode == 1
    assert "SQUAD_DIR is not set" in done.stderr
    done = run(SQUAD_DIR=str(sweep.folder), METHODS="full", SEEDS="1 2")
    names = [row.split("\t")[0] for row in sweep.rows(done)]
    assert names == [
        f"{task}/{run}"
        for task in ("STS-B", "MRPC", "SQuAD")
        for run in ("frozen", "full-seed1", "full-seed2")
    ]
    frozen, trained = sweep.rows(done)[-3:-1]
    assert "--tuning_method=head" in frozen and "--do_train" not in frozen
    assert "--data_dir=OUTPUT_DIR/data/SQuAD" in trained
    link = sweep.out / "data/SQuAD/dev.json"
    assert link.resolve() == (sweep.folder / "dev.json").resolve()
    # Runs that are finished may have read the first.
    changes = {"SQUAD_DIR": str(sweep.folder), "TRAIN_FILE": "dev.json"}
    done = run(**changes, METHODS="full", SEEDS="1 2")
    assert "train.json is there and is not " in done.stderr
    methods = "houlsby(size=4,layers='0-2')", "houlsby(size=4,layers='0,2')"
    done = run(TASKS="MRPC", METHODS=" ".join(methods), SEEDS="1")
    names = [row.split("\t")[0] for row in sweep.rows(done)]
    assert names[1:] == [f"MRPC/{method}-seed1" for method in methods]
