"""Folders of sentence-transformers: read, written, and what is refused."""

import contextlib
import glob
import json
import os
import subprocess
from shutil import copytree

import numpy as np
import pytest
import refusals
from conftest import (
    module_fixture,
    open_bert,
    open_checkpoint,
    read_json,
    trained_task,
    write_json,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from test_convert_checkpoint import convert  # noqa: F401
from test_device_programs import PEER, ROOT
from test_json_files import spoil
from test_sources import refuses
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert.answering.embeddings import VectorForm, embed
from adapter_bert.checkpoints import sentence_transformers, sources
from adapter_bert.checkpoints.written_form import write_files
from adapter_bert.commands import library
from adapter_bert.errors import UserError
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.tasks.text_task import HeadShape
from adapter_bert.tasks.vector_form import Dense, Pooled
from adapter_bert.tasks.vectors import Vectors

pytestmark = pytest.mark.newer_stack
VECTORS = ROOT / "lab/speed/peers/sentence_vectors.py"
HAS_LIBRARY = glob.glob(
    os.path.join(
        os.path.dirname(os.path.dirname(PEER)),
        "lib/python*/site-packages/sentence_transformers",
    )
)
TEXTS = ["the cat sat", "a dog", "", "the mat " * 40]
# As version 5.7 writes them.
NEW_TYPES = (
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "sentence_transformers.sentence_transformer.modules.normalize.Normalize",
)
LAST_LAYER = {
    "transformer_task": "feature-extraction",
    "modality_config": {
        "text": {"method": "forward", "method_output_name": "last_hidden_state"}
    },
    "module_output_name": "token_embeddings",
}
FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
)


def write(folder, bert, pooled, place=""):
    """Writes a folder as version 2 does, with its model in a place."""
    copytree(bert, folder / place)
    described = sentence_transformers.describe(pooled, 16)
    described["modules.json"][0]["path"] = place
    described[f"{place}/sentence_bert_config.json".lstrip("/")] = described.pop(
        "sentence_bert_config.json"
    )
    write_files(str(folder), described)
    return folder


def change(folder, name, **values):
    """Changes fields of a file."""
    path = folder / name
    before = read_json(path) if path.exists() else {}
    write_json(path, {**before, **values})


def rewrite_modules(folder, *types):
    """Gives the modules other types, or leaves some out."""
    path = folder / "modules.json"
    modules = read_json(path)
    for module, name in zip(modules, types):
        module["type"] = name
    write_json(path, modules[: len(types)])


@pytest.fixture
def folder(tmp_path, tiny_bert):
    return write(tmp_path / "st", tiny_bert, Pooled("mean", True, 12))


def test_all_versions_folders_are_read(tmp_path, tiny_bert, tiny_weights):
    """The model in the folder or in one of its own, old fields and new."""
    for number, pooled in enumerate(
        (Pooled("cls", False, None), Pooled("mean", True, 12))
    ):
        for place in ("", "0_Transformer"):
            made = tmp_path / f"{number}{place}"
            write(made, tiny_bert, pooled, place)
            if place:
                # No module is there.
                (made / "model.safetensors").write_bytes(b"others")
            opened = open_checkpoint(made)
            assert opened.pooled == pooled
            assert sources.read_config(opened).hidden_size == 16
            assert sources.find_vocabulary(opened).endswith("vocab.txt")
            name = "bert/pooler/dense/kernel"
            assert_array_equal(opened.weights.read(name), tiny_weights[name])
            model = open_checkpoint(made / place / "model.safetensors")
            assert model.pooled is None
    rewrite_modules(made, *NEW_TYPES)
    write_json(
        made / "1_Pooling/config.json",
        {"embedding_dimension": 16, "pooling_mode": "cls"},
    )
    model = made / "0_Transformer"
    write_json(model / "sentence_bert_config.json", LAST_LAYER)
    change(model, "tokenizer_config.json", model_max_length=9)
    opened = open_checkpoint(made)
    assert opened.pooled == Pooled("cls", True, 9)


def test_what_has_no_counterpart_is_refused(folder, tmp_path):
    whole, model = "config_sentence_transformers.json", FILES[3]
    pooling = "1_Pooling/config.json"
    dense = "sentence_transformers.models.Dense"
    clip = "sentence_transformers.models.CLIPModel"
    kinds = [
        f"sentence_transformers.models.{name}"
        for name in sentence_transformers.KNOWN
    ]
    readable = (
        "known are Transformer, Pooling, then any Dense, then Normalize or"
    )

    def modules(*types):
        return lambda place: rewrite_modules(place, *types)

    def fields(name, **values):
        return lambda place: change(place, name, **values)

    def path_of_module(place):
        modules = read_json(place / "modules.json")
        modules[1]["path"] = "../elsewhere"
        write_json(place / "modules.json", modules)

    for number, (spoiled, message) in enumerate(
        (
            (modules(kinds[0], dense, kinds[1]), f"Dense, Pooling; {readable}"),
            (modules(clip), f"the modules are {clip}; {readable}"),
            (modules(kinds[0]), f"the modules are Transformer; {readable}"),
            (modules("mine.Transformer", kinds[1]), "are mine.Transformer, P"),
            (modules(), f"the modules are missing; {readable}"),
            (path_of_module, "the folder of a module is '../elsewhere'"),
            (
                fields(pooling, pooling_mode_max_tokens=True),
                "pooled by max, mean, expected cls or mean",
            ),
            (fields(pooling, pooling_mode="lasttoken"), "pooled by lasttoken"),
            (fields(pooling, power=3), "'power' is '3', a field that this"),
            (fields(model, do_lower_case=True), "a tokenizer that keeps"),
            (fields(model, max_seq_length=1), "longest input has 1 tokens"),
            (
                fields(model, transformer_task="fill-mask"),
                "transformer_task is 'fill-mask', expected 'feature-extr",
            ),
            (fields(model, model_args={"a": 1}), "'model_args' is"),
            (
                fields(whole, default_prompt_name="q", prompts={"p": "Ask: "}),
                "default_prompt_name is 'q', expected one of prompts: p",
            ),
            (fields(whole, truncate_dim=8), "truncate_dim is 8"),
            (fields(whole, model_type="SparseEncoder"), "'SparseEncoder', exp"),
        )
    ):
        copy = tmp_path / str(number)
        copytree(folder, copy)
        spoiled(copy)
        refuses(copy, message, "pass its model.safetensors")
    # What has no effect.
    change(folder, "tokenizer_config.json", do_lower_case=True)
    change(folder, model, do_lower_case=True, unpad_inputs=None)
    prompts = {"query": "q: "}
    change(folder, whole, prompts=prompts, similarity_fn_name="dot")
    assert sentence_transformers.read(str(folder))[1] == Pooled(
        "mean", True, 12, prompts, similarity_fn_name="dot"
    )


GOLDEN = ROOT / "tests/golden/sentence_transformers"
FORMS = sorted(path.name for path in (GOLDEN / "forms").iterdir())


@pytest.fixture
def form(tmp_path, request):
    """A folder of that library, with the recorded model."""
    folder = tmp_path / request.param
    copytree(GOLDEN / "whole", folder)
    copytree(GOLDEN / "forms" / request.param, folder, dirs_exist_ok=True)
    return folder


def recorded_vectors(folder):
    """What to ask of a folder, and that library's vectors."""
    names = {"default": None, "text": "it is "}
    with np.load(folder / "vectors.npz") as arrays:
        return {names.get(name, name): arrays[name] for name in arrays}


def test_a_dense_layer_of_another_width_is_refused(tmp_path, tiny_bert):
    kernel = np.ones((3, 5), np.float32)
    dense = Dense(3, 5, False, "linear", (kernel,))
    folder = write(
        tmp_path / "st", tiny_bert, Pooled("mean", True, dense=(dense,))
    )
    refusals.check(
        lambda: open_checkpoint(folder).pooled,
        "has 3 inputs, but ",
        " have 16 entries",
    )


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_recorded_forms(form, convert, tmp_path):  # noqa: F811
    """Prompts and dense layers, read, and written and read again."""
    texts = read_json(GOLDEN / "texts.json")
    written = tmp_path / "written"
    convert(form, "sentence_transformers", written)
    for folder in (form, written):
        bert = open_bert(folder)
        for prompt, expected in recorded_vectors(form).items():
            assert_allclose(
                embed(bert, texts, prompt=prompt), expected, atol=1e-5
            )
    pooled = [open_checkpoint(f).pooled for f in (form, written)]
    assert pooled[0] == pooled[1]


@given(data=st.data(), name=st.sampled_from(FILES))
def test_a_spoiled_file_is_a_result_or_one_line(spoiled_folder, data, name):
    path = spoiled_folder / name
    whole = path.read_text()
    try:
        write_json(path, spoil(json.loads(whole), data))
        with contextlib.suppress(UserError):
            open_checkpoint(spoiled_folder)
    finally:
        path.write_text(whole)


@module_fixture
def spoiled_folder(tmp_path_factory, tiny_bert):
    folder = tmp_path_factory.mktemp("spoiled") / "st"
    write(folder, tiny_bert, Pooled("mean", True, 12))
    change(folder, FILES[4], do_lower_case=True, model_max_length=12)
    return folder


def test_vectors_are_made_as_the_folder_says(folder, tiny_bert):
    """Pooling, length of vectors and of inputs; what is asked goes first."""
    bert = open_bert(folder)
    plain = open_bert(tiny_bert)

    def of_plain(**how):
        return embed(plain, TEXTS, max_seq_length=12, **how)

    vectors = embed(bert, TEXTS)
    expected = of_plain(pooling="mean", normalize=True)
    assert_array_equal(vectors, expected)
    last = plain.config.num_hidden_layers - 1
    assert_array_equal(embed(bert, TEXTS, layers=[last]), vectors)
    for how in (
        {"pooling": "trained"},
        {"pooling": "trained", "normalize": False},
        {"pooling": "trained", "size": 5},
    ):
        other = {"normalize": True, **how, "pooling": "mean"}
        assert_array_equal(embed(bert, TEXTS, **how), of_plain(**other))
    cut = of_plain(pooling="mean")[:, :5]
    cut /= np.linalg.norm(cut, axis=-1, keepdims=True)
    assert_allclose(embed(bert, TEXTS, size=5), cut, atol=1e-6)
    # Texts are as long as BERT allows, and vectors as BERT gives them.
    assert_array_equal(embed(bert, TEXTS, pooling="mean"), embed(plain, TEXTS))
    for model, how, message in (
        (plain, {"pooling": "trained"}, "nor the BERT's folder says how"),
        (
            bert,
            {"pooling": "trained", "layers": [0]},
            "--layers is for --embeddings=cls, mean",
        ),
        (bert, {"size": 17}, "--vector_size is 17, but a vector has 16"),
        (plain, {"size": 0}, "--vector_size is 0, but a vector has 16"),
    ):
        with pytest.raises(UserError, match=message):
            embed(model, TEXTS, **how)
    tokens = VectorForm("tokens")
    assert tokens.completed(bert, None, bert.tokenizer(), 9) == tokens


def test_a_training_begins_with_the_folder_s_vectors(folder, tiny_bert):
    task, plain = Vectors(), open_checkpoint(tiny_bert)
    opened = open_checkpoint(folder)
    assert task.fit_base(plain) == task
    form = task.fit_base(opened).form
    assert (form.pooling, form.normalize) == ("mean", True)
    named = Vectors(pooling="cls", normalize=False)
    form = named.fit_base(opened).form
    assert (form.pooling, form.normalize) == ("cls", False)


def test_a_folder_is_written(convert, folder, tiny_bert, tmp_path):  # noqa: F811
    """From a BERT, with a pooling by flag, and from a folder."""
    first = tmp_path / "first"
    convert(
        tiny_bert,
        "sentence_transformers",
        first,
        "--pooling=cls",
        "--normalize=true",
    )
    # A head of any form is left out.
    mean = {**CLASSIFICATION, **HeadShape(mean=True).describe()}
    make_artifact(tmp_path / "few", tiny_bert, "ia3", description=mean)
    convert(
        tiny_bert,
        "sentence_transformers",
        tmp_path / "of_few",
        "--pooling=mean",
        f"--adapter={tmp_path / 'few'}",
    )
    # The longest input is the BERT's.
    assert open_checkpoint(first).pooled == Pooled("cls", True, 32)
    assert_array_equal(
        embed(open_bert(first), TEXTS),
        embed(open_bert(tiny_bert), TEXTS, pooling="cls", normalize=True),
    )
    # A flag changes what it names alone.
    for number, (flag, pooled) in enumerate(
        (
            ("--pooling=cls", Pooled("cls", True, 12)),
            ("--normalize=false", Pooled("mean", False, 12)),
        )
    ):
        place = tmp_path / f"flag{number}"
        convert(folder, "sentence_transformers", place, flag)
        assert open_checkpoint(place).pooled == pooled
    # The document's prompt is told by its name.
    form = Pooled("mean", True, 12).with_prompts("q: ", "d: ")
    write(tmp_path / "two", tiny_bert, form)
    assert open_checkpoint(tmp_path / "two").pooled == form
    for more, message in (
        ([tiny_bert, "sentence_transformers"], "says how vectors are pooled"),
        (
            [folder, "sentence_transformers", "--activation=gelu"],
            "--to=sentence_transformers holds any gelu",
        ),
    ):
        bert, form, *flags = more
        with pytest.raises(UserError, match=message):
            convert(bert, form, tmp_path / "none", *flags)
    refusals.check(
        lambda: convert(tiny_bert, "google", folder), "holds a BERT's"
    )


def run_library(*arguments):
    """Runs `adapter-bert library` within this process."""
    command, (folder, *words) = library.parse(list(map(str, arguments)))
    command.run(AdapterLibrary(folder, create=True), *words)


@pytest.fixture
def imported(golden_dir, tmp_path):
    """The recorded adapter in a library, with its BERT."""
    recorded = golden_dir / "sentence_transformers"
    shelf, whole = tmp_path / "shelf", recorded / "whole"
    bert = f"--init_checkpoint={whole}"
    run_library("import", shelf, recorded / "peft", "--name=query", bert)
    return shelf, whole


def test_recorded_vectors(golden_dir, imported, tmp_path):
    """Of a whole model and of an adapter, there and back again."""
    recorded = golden_dir / "sentence_transformers"
    texts = read_json(recorded / "texts.json")
    shelf, whole = imported
    bert, bert_flag = open_bert(whole), f"--init_checkpoint={whole}"
    expected = np.load(whole / "vectors.npy")
    assert_allclose(embed(bert, texts), expected, atol=1e-5)
    query = trained_task(bert, shelf / "query")
    assert query.max_seq_length == 12
    expected = np.load(recorded / "peft" / "vectors.npy")
    vectors = embed(bert, texts, task=query)
    assert_allclose(vectors, expected, atol=1e-5)
    # At most the BERT's own.
    longer = copytree(recorded / "peft", tmp_path / "longer")
    settings = read_json(longer / "tokenizer_config.json")
    write_json(
        longer / "tokenizer_config.json", {**settings, "model_max_length": 512}
    )
    run_library("import", tmp_path / "b", longer, "--name=longer", bert_flag)
    longest = trained_task(bert, tmp_path / "b/longer").max_seq_length
    assert longest == bert.config.max_tokens
    words = shelf, recorded / "peft", "--name=other", "--multi_label"
    refusals.check(
        lambda: run_library("import", *words, bert_flag),
        "leave out --multi_label",
    )
    written = tmp_path / "written"
    to = ("export", shelf, "query", written, "--to=peft")
    refusals.check(
        lambda: run_library(*to), "query makes vectors, which sentence"
    )
    other = tmp_path / "vocabulary"
    copytree(whole, other)
    rules = read_json(other / "tokenizer_config.json")
    write_json(
        other / "tokenizer_config.json", {**rules, "strip_accents": False}
    )
    refusals.check(
        lambda: run_library(*to, f"--init_checkpoint={other}"),
        "has another vocabulary, or other rules",
    )
    run_library(*to, f"--init_checkpoint={whole}")
    assert "SentenceTransformer(" in (written / "README.md").read_text()
    other = tmp_path / "other"
    run_library(
        "import", other, written, "--name=again", f"--init_checkpoint={whole}"
    )
    again = trained_task(bert, other / "again")
    assert_array_equal(embed(bert, texts, task=again), vectors)
    described = {"name": "vectors", "pooling": "cls", "normalize": True}
    make_artifact(tmp_path / "plain", whole, "lora(rank=2)", None, described)
    run_library("add", shelf, tmp_path / "plain", "--name=plain")
    refusals.check(
        lambda: run_library(
            "export", shelf, "plain", tmp_path / "hub", "--to=adapterhub"
        ),
        "do not say how vectors are made",
    )


@pytest.mark.skipif(
    not HAS_LIBRARY,
    reason=f"no sentence-transformers for {PEER}; `make peers` installs it",
)
def test_the_library_makes_the_same_vectors(
    convert,  # noqa: F811
    imported,
    golden_dir,
    tmp_path,  # noqa: F811
):
    """Of merged adapters, and of peft's."""
    shelf, whole = imported
    merged, peft = tmp_path / "merged", tmp_path / "peft"
    adapter = tmp_path / "adapter"
    described = {"name": "vectors", "pooling": "cls", "normalize": True}
    make_artifact(adapter, whole, "dora(rank=5)", None, described)
    form = "sentence_transformers"
    convert(whole, form, merged, f"--adapter={adapter}")
    run_library(
        "export",
        shelf,
        "query",
        peft,
        "--to=peft",
        f"--init_checkpoint={whole}",
    )
    texts = golden_dir / form / "texts.json"
    subprocess.run([PEER, VECTORS, texts, whole, merged, peft], check=True)
    bert = open_bert(whole)
    for folder, trained in ((merged, adapter), (peft, shelf / "query")):
        assert_allclose(
            np.load(folder / "vectors.npy"),
            embed(bert, read_json(texts), task=trained_task(bert, trained)),
            atol=1e-5,
        )
    opened = open_checkpoint(merged)
    assert opened.pooled == Pooled("cls", True, 24)
