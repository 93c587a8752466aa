"""Records what transformers compute with tiny models that are like BERT.

    .venv-peer/bin/python lab/speed/peers/record_architectures.py \
        tests/golden/architectures

Runs in the peer's environment (requirements.txt next to this file) and imports
nothing of this project. Each model has random weights, one encoder with a head
for texts and the head of masked words, in a folder as Hugging Face publishes
theirs. Next to it are ids of texts, hidden states, logits, and weights and
logits of other heads. Names of models, as `MPNet`, may follow the folder.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat ran on mat fast slow "
    "not is was good bad film , . ! ? ##s ##ed ##ing in out"
).split()
# Texts and pairs.
TEXTS = (
    ("The cat sat on the mats.",),
    ("a  dog ran\n fast!",),
    ("unseen film",),
    ("",),
    ("The cat sat.", "A dog ran fast"),
    ("Is the film good?", ""),
)
# Tokens of each row that the models compute; the first is as long as can be.
LENGTHS = (24, 11, 3)
# What pieces are found in.
SENTENCES = (
    "the cat sat on the mat, and a dog ran fast.",
    "a slow dog sat in; the film was not bad!",
    "is the film good? it is not a good film.",
    "the cat sat out on a mat . the dog ran in , not slow",
)
# Places whose logits of words are recorded.
MASKED = (0, 2, 1)
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": max(LENGTHS),
    "id2label": {0: "bad", 1: "good"},
    "label2id": {"bad": 0, "good": 1},
}
# The beginning of the names of a model's classes -> its own sizes.
MODELS = {
    "DistilBert": {
        "dim": 16,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 32,
    },
    "Electra": {"embedding_size": 8},
    "Albert": {"embedding_size": 8, "num_hidden_layers": 3},
    # Its distances are told apart up to 128.
    "MPNet": {"max_position_embeddings": 152, "layer_norm_eps": 1e-5},
}
LONGEST = {"MPNet": 150}
# Model -> name of an output's head -> end of its class, its layer.
OTHER_HEADS = {
    "MPNet": {
        "spans": ("ForQuestionAnswering", "qa_outputs"),
        "tags": ("ForTokenClassification", "classifier"),
    }
}
# As of transformers' attribute maps.
RENAMED = {"DistilBert": SIZES.keys() & {*list(SIZES)[:4]}}


def make_tokenizer(name, folder):
    """The tokenizer of a model, whose files are in the folder afterwards."""
    if name == "Albert":
        return make_unigram(folder / "tokenizer.json")
    path, words = folder / "vocab.txt", WORDS
    if name == "MPNet":
        words = ["<s>", "<pad>", "</s>", "<unk>", *WORDS, "<mask>"]
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    kind = getattr(transformers, f"{name}TokenizerFast")
    tokenizer = kind(vocab_file=str(path))
    about = {"do_lower_case": True, "tokenizer_class": f"{name}Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return tokenizer


def make_unigram(path):
    """A tokenizer in the parts of ALBERT's, of pieces from `SENTENCES`.

    But for a table of its normalizer, which is 300 kB.
    """
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="always"
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60,
        special_tokens=["<pad>", "<unk>", "[CLS]", "[SEP]"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    described = json.loads(tokenizer.to_str())
    described["model"]["vocab"].append(["[MASK]", 0.0])
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    return transformers.AlbertTokenizerFast(tokenizer_file=str(path))


def make_models(name, config):
    """Models of one encoder for texts and for masked words, all random."""
    found = []
    for end in ("ForSequenceClassification", "ForMaskedLM"):
        model = getattr(transformers, name + end)(config).eval()
        if found:
            model.base_model.load_state_dict(
                found[0].base_model.state_dict(), strict=False
            )
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if not found or not key.startswith(model.base_model_prefix):
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        found.append(model)
    return found


def make_inputs(vocab_size, segments, longest=LENGTHS[0]):
    """Ids, mask and segments, int64 [B, T], by the models' arguments."""
    ids = torch.randint(5, vocab_size, (len(LENGTHS), longest))
    mask = torch.zeros_like(ids)
    for row, length in enumerate((longest, *LENGTHS[1:])):
        mask[row, :length] = 1
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    if segments:
        inputs["token_type_ids"] = mask.cumsum(1).gt(6).long() * mask
    return inputs


def other_heads(name, model, inputs):
    """Weights and outputs of heads on the encoder of a model, by name."""
    recorded = {}
    for head, (end, layer) in OTHER_HEADS.get(name, {}).items():
        other = getattr(transformers, name + end)(model.config).eval()
        other.base_model.load_state_dict(
            model.base_model.state_dict(), strict=False
        )
        of_head = getattr(other, layer)
        torch.nn.init.normal_(of_head.weight)
        torch.nn.init.normal_(of_head.bias)
        with torch.no_grad():
            found = other(**inputs)
        logits = (
            torch.stack([found.start_logits, found.end_logits], -1)
            if head == "spans"
            else found.logits
        )
        recorded[f"{head}_weight"] = of_head.weight.detach().numpy()
        recorded[f"{head}_bias"] = of_head.bias.detach().numpy()
        recorded[f"{head}_logits"] = logits.numpy()
    return recorded


def record(folder, name):
    """Records one model with its tokenizer into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(name, folder)
    sizes = {k: v for k, v in SIZES.items() if k not in RENAMED.get(name, ())}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(tokenizer), **{**sizes, **MODELS[name]}
    )
    texts, words = make_models(name, config)
    inputs = make_inputs(
        len(tokenizer),
        hasattr(config, "type_vocab_size"),
        LONGEST.get(name, LENGTHS[0]),
    )
    with torch.no_grad():
        found = texts(**inputs, output_hidden_states=True)
        of_words = words(**inputs, output_hidden_states=True)
    last = found.hidden_states[-1]
    torch.testing.assert_close(of_words.hidden_states[-1], last)
    config.architectures = [type(texts).__name__]
    config.save_pretrained(folder)
    tied = words.get_output_embeddings().weight
    save_file(
        {
            key: value.contiguous().clone()
            for key, value in {
                **words.state_dict(),
                **texts.state_dict(),
            }.items()
            if "decoder" not in key
            and (value.shape != tied.shape or "embeddings" in key)
        },
        folder / "model.safetensors",
        {"format": "pt"},
    )
    tokens = []
    for row in TEXTS:
        # As a batch: alone, an empty second text would be taken for none.
        of = {k: v[0] for k, v in tokenizer(*([text] for text in row)).items()}
        tokens.append([row, of["input_ids"], of.get("token_type_ids")])
    (folder / "expected.json").write_text(json.dumps(tokens))
    np.savez_compressed(
        folder / "expected.npz",
        embedding_output=found.hidden_states[0].numpy(),
        sequence_output=last.numpy(),
        logits=found.logits.numpy(),
        places=np.array(MASKED, np.int32),
        logits_of_words=of_words.logits[:, list(MASKED)].numpy(),
        **other_heads(name, texts, inputs),
        **{
            key: value.numpy().astype(np.int32) for key, value in inputs.items()
        },
    )
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder.name}: {len(tokenizer)} tokens, {size / 1e3:.0f} kB")


def main():
    """Records models into a folder; the arguments are folder and models."""
    folder = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        torch.manual_seed(0)
        record(folder / name.lower(), name)


if __name__ == "__main__":
    main()
