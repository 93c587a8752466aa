"""The commands of the guides, run as they stand but on tiny models and data.

Pages are run in the order of `PAGES`, in one folder: later ones use what
earlier ones have trained. A command that is not run has its reason here.
"""

import json
import os
import re
import sys

import pytest
from conftest import (
    ROOT,
    SENTENCES,
    read_json,
    run_command,
    write_bert,
    write_lines,
    write_table,
)
from task_files import write_split

from adapter_bert.tasks.kinds import get_task

PAGES = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "own_data experiments outputs tagging masked_lm methods "
            "checkpoints library predict export exchange compositions "
            "reproduction search"
        ).split()
    ),
)
# What is run otherwise, or cannot be run: part of a command -> why, or where.
NOT_RUN = {
    r"^git clone": "needs the repository's address",
    r"^make quickstart": "tests/test_scripts.py",
    r"^make beam": "installs; CONTRIBUTING.md",
    r"(adapter-bert |=)mpnet": "takes minutes; tests/test_packaged_models.py",
    r"\.venv-beam": "needs Beam; tests/test_beam.py",
    r"out/quickstart": "needs `make quickstart`; tests/test_scripts.py",
    r"scripts/download_bert\.sh \w": "downloads; tests/test_download_bert.py",
    r"scripts/download_(glue|squad)": "downloads; tests/test_downloads.py",
    r"adapter-bert serve": "keeps running; tests/test_serve.py",
    r"^curl": "asks a server; tests/test_serve.py",
    r"^sbatch": "needs Slurm; tests/test_slurm.py",
    r"\.\.\.": "leaves something out",
    r"hf:": "asks the hub; tests/test_hugging_face_hub.py",
    r"shelf (VECTORS|query)": (
        "needs an adapter of vectors; tests/test_sentence_transformers.py"
    ),
    r"NEW_BERT": "needs a second BERT; tests/test_moved_library.py",
    r"shelf FOLDER --name=answers": (
        "needs a cross-encoder; tests/test_reranking.py"
    ),
    r"shelf/NAME": "takes what was suggested; tests/test_suggestion.py",
    r"sweep_glue\.sh out/(sweep|small|my_sweep)( --jobs| --$| -- )": (
        "many runs; tests/test_sweeps_real.py"
    ),
    r"sweep_tagging\.sh": "many runs; tests/test_sweeps.py",
    r"glue_submission\.sh": "needs all tasks; tests/test_glue_submission.py",
    r"ablate\.sh": "tests/test_ablate_adapter.py",
    r"--exchange_part": "needs two languages; tests/test_language_adapters.py",
    r"out/(methods|wnut17|german|mta)\b": "an experiment of hours or minutes",
    r"out/sweep\b": "needs a sweep; tests/test_summarize.py",
}
# As long as the commands learn what the pages say, they take minutes.
EDITS = (
    (r"\$\(\.venv/bin/adapter-bert minilm\)", "$TINY"),
    (r"--num_train_epochs=[\d.]+", "--num_train_epochs=1"),
    (r"--num_train_steps=\d+", "--num_train_steps=2"),
    (r"--num_warmup_steps=\d+", "--num_warmup_steps=1"),
    (r"model\.ckpt-573", "model.ckpt-1"),
    (r"--library=DIR", "--library=shelf"),
    # Vectors of a tiny BERT are all alike.
    (r"--range=10-100 --margin=5%", "--range=2-9"),
)
# What comes before a page's commands: files that it makes anew go, and those
# that it says it takes are made.
BEFORE = {
    "README.md": """
train --task_name=CoLA --data_dir=glue/CoLA \\
  --output_dir=out/quickstart/customer_intents
train --task_name=MRPC --data_dir=glue/MRPC \\
  --output_dir=out/quickstart/same_meaning
""",
    "docs/own_data.md": "rm -rf out/tickets out/new tickets.csv new.csv",
    "docs/masked_lm.md": "ln -s texts.txt raw.txt",
    "docs/library.md": "rm -rf shelf",
    "docs/predict.md": """
BERT=$TINY
rm -rf shelf out/mrpc
train --task_name=MRPC --data_dir=glue/MRPC --output_dir=out/mrpc
.venv/bin/adapter-bert library add shelf out/mrpc
.venv/bin/adapter-bert library add shelf out/rte_2 --name=rte
""",
    "docs/exchange.md": """
rm -rf shelf
theirs=tests/golden/exchange_setups
BERT=$theirs/bert
ln -s $theirs/fusion_folders/b FOLDER
ln -s $theirs/adapterhub/language LANGUAGE
""",
    "docs/search.md": "rm -rf shelf out/rerank",
    "docs/compositions.md": """
BERT=$TINY
rm -r out/mrpc out/cola
for task in MRPC CoLA; do
  train --task_name=$task --data_dir=glue/$task --tuning_method=pfeiffer \\
    --output_dir=out/$(echo $task | tr A-Z a-z)
done
""",
}
BEGINNINGS = re.compile(
    r"(?:\$ |export |[A-Z_]+=|\(export|echo |for |done|git |make |curl |docker "
    r"|sbatch |sed |awk |cat |\.venv|python3? |scripts/)"
)
FLAGS = (
    "--do_train=true --do_eval=true --num_train_epochs=1 "
    "--init_checkpoint=$TINY --learning_rate=1e-3"
)
TRAIN = f'train() {{ .venv/bin/python run_classifier.py {FLAGS} "$@"; }}'
PREPARATION = """
.venv/bin/adapter-bert convert --init_checkpoint=$TINY \\
  --to=google --activation=gelu --output_dir=berts/uncased_L-12_H-768_A-12
for task in SST-2 CoLA; do
  name=$(echo $task | tr A-Z a-z)
  train --task_name=$task --data_dir=glue/$task --output_dir=out/$name
done
train --task_name=RTE --data_dir=glue/RTE --output_dir=out/rte_2
for seed in 1 2; do
  train --task_name=MRPC --data_dir=glue/MRPC --seed=$seed \\
    --output_dir=out/$seed
done
"""


def code_of(page):
    """The commands of a page: lines joined, what is shown of outputs left."""
    text = re.sub("(?ms)^```.*?^```$", "", (ROOT / page).read_text())
    blocks = re.findall(r"(?:^ {4}.*\n(?:\n(?= {4}))*)+", text, re.MULTILINE)
    for block in blocks:
        lines = re.sub(r"^ {4}", "", block, flags=re.MULTILINE)
        lines = re.sub(r"\\\n\s*", " ", lines).splitlines()
        while lines:
            line = lines.pop(0)
            if not BEGINNINGS.match(line):
                continue
            end = re.search(r"<<'(\w+)'$", line)
            while end and not line.endswith(f"\n{end[1]}"):
                line += "\n" + lines.pop(0)
            while line.startswith("for ") and not line.endswith("done"):
                line += "\n" + lines.pop(0)
            while line.startswith("(") and not line.endswith(")"):
                line += "\n" + lines.pop(0)
            yield line[2:] if line.startswith("$ ") else line


def write_files(folder):
    """Data under the names that the pages have."""
    for name in ("MRPC", "RTE", "CoLA", "SST-2"):
        task = get_task(name)
        (folder / "glue" / name).mkdir(parents=True)
        rows = [
            (text, "a dog sat", task.labels[i % 2])
            for i, (text, _) in enumerate(SENTENCES)
        ]
        for kind, count in (("train", 4), ("dev", 1), ("test", 1)):
            write_split(folder / "glue" / name, task, kind, rows * count)
    rows = [f"{i},{text},{label}" for i, (text, label) in enumerate(SENTENCES)]
    tickets = "\n".join(["ticket,message,queue", *rows * 3]) + "\n"
    (folder / "tickets.csv").write_text(tickets.replace(" , ", " "))
    (folder / "labelled.csv").write_text(
        "message,queue\na cat sat,complaint\na dog ran,cancel_order\n"
    )
    (folder / "new.csv").write_text("ticket,message\n1,a cat sat\n")
    for split in ("train", "test"):
        mails = f"text,label\n{'a cat ' * 200},ham\na dog,spam\n"
        (folder / f"mails_{split}.csv").write_text(mails)
    write_table(folder / "rows.tsv", [("a cat", "a dog")], ("text", "text_b"))
    lists = [
        {"query": text, "documents": [text, "a dog"], "labels": [1, 0]}
        for text, _ in SENTENCES
    ]
    documents = [{"_id": str(n), "text": f"a cat {n}"} for n in range(12)]
    for name, rows in (("train", lists), ("dev", lists), ("corpus", documents)):
        write_lines(folder / f"{name}.jsonl", map(json.dumps, rows))
    pairs = ["question,document", *(f"a dog {n},{n}" for n in range(12))]
    write_lines(folder / "train.csv", pairs)
    words = "the\tO\ncat\tB-cat\nsat\tO\n\na\tO\ndog\tB-dog\nran\tO\n\n"
    for name in ("my_ner", "wnut17"):
        (folder / name).mkdir()
        for split, count in (("train", 8), ("dev", 2), ("test", 2)):
            (folder / name / f"{split}.conll").write_text(words * count)
    (folder / "new.conll").write_text("a\ncat\nsat\n\n")
    marked = {"text": "The cat of Orvia", "label": [[3, 8, "ORG"]]}
    write_lines(folder / "marked.jsonl", [json.dumps(marked)] * 4)
    for name, count in (("texts", 40), ("held_out", 8)):
        lines = [text for text, _ in SENTENCES] * count
        write_lines(folder / f"{name}.txt", lines)


@pytest.fixture(scope="session")
def run(tmp_path_factory, tiny_config, tiny_weights, tiny_squad, tiny_bert):
    """Runs a command in a checkout with data and models next to it."""
    folder = tmp_path_factory.mktemp("guides")
    for path in ROOT.iterdir():
        if path.suffix != ".csv" and path.name not in (".git", ".venv", "out"):
            (folder / path.name).symlink_to(path)
    (folder / ".venv").symlink_to(sys.prefix)
    write_files(folder)
    (folder / "squad").mkdir()
    for split in ("train", "dev"):
        (folder / "squad" / f"{split}-v1.1.json").symlink_to(
            tiny_squad / "v1.json"
        )
    bert = folder / "tiny_bert"
    bert.mkdir()
    config = read_json(tiny_bert / "config.json")
    config["max_position_embeddings"] = 512
    values = dict(tiny_weights)
    name = "bert/embeddings/position_embeddings"
    values[name] = values[name].repeat(16, axis=0)
    words = (tiny_bert / "vocab.txt").read_text().split()
    tiny = type(tiny_config)(**config)
    write_bert(bert, words, tiny, values)
    environment = {
        **os.environ,
        "TINY": str(bert),
        "GLUE_DIR": "glue",
        "BERT": str(bert),
        "NAMES": str(folder / "names"),
    }

    def run(command):
        """Variables that it sets are there for the next one."""
        script = (
            f'[ ! -f "$NAMES" ] || . "$NAMES"\n{TRAIN}\n{command}\n'
            'declare -p BERT GLUE_DIR MINILM 2> /dev/null > "$NAMES" || true\n'
        )
        done = run_command(
            "bash",
            "-euo",
            "pipefail",
            "-c",
            script,
            cwd=folder,
            env=environment,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    run(PREPARATION)
    return run


def test_each_reason_is_of_a_command():
    commands = [command for page in PAGES for command in code_of(page)]
    for part in NOT_RUN:
        assert any(re.search(part, command) for command in commands), part


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_guide_work(run, page):
    run(BEFORE.get(page, ":"))
    for command in code_of(page):
        if any(re.search(part, command) for part in NOT_RUN):
            continue
        for pattern, replacement in EDITS:
            command = re.sub(pattern, replacement, command)
        run(command)
