"""Records what transformers compute with a tiny RoBERTa and a tiny XLM-R.

    .venv-peer/bin/python lab/speed/peers/record_roberta.py \
        tests/golden/roberta

Runs in the peer's environment (requirements.txt next to this file) and imports
nothing of this project. Two models with random weights and tokenizers that are
trained on a few sentences, in folders as Hugging Face publishes theirs:
`roberta`, byte-level BPE, with the head of masked language modelling, and
`xlm-roberta`, unigram, with the one of classification. Next to them are ids,
offsets and outputs.
"""

import json
import pathlib
import sys

import numpy as np
import torch
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
from transformers import (
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaTokenizerFast,
)

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
CORPUS = (
    "The cat sat on the mat, and a dog ran fast.",
    "A slow dog sat in; the film was not bad!",
    "Is the film good? It is not a good film.",
    "Anna lives in Zürich and works for the Zentralbank.",
    "the cat sat out on a mat . the dog ran in , not slow",
    "Where does Anna live? What was slow? Who ran out?",
)
TEXTS = (
    "Hello world",
    " Hello world",
    "The cat sat on the mat.",
    "a  dog\tran \n fast ",
    "Zürich (Anna) isn't film-like: 12,345 €",
    "日本語 ﬁlm ＡＢＣ \u00a0 😀",
    "naïve cafe\u0301 \u200b x",
    "",
)
PAIRS = (
    ("The cat sat.", "A dog ran fast"),
    ("Is the film good?", " it is not"),
    ("Zürich", ""),
)
WORDS = (
    ("Anna", "lives", "in", "Zürich", "."),
    ("(", "a", "dog", ")", "isn't", "日本語"),
)
# Tokens of each row that the models compute; the first is as long as can be.
LENGTHS = (40, 17, 3)
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 42,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
# Places whose logits are recorded.
MASKED = (0, 2, 1)


def train_byte_level():
    """A byte-level BPE tokenizer, in the parts of RoBERTa's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    return tokenizer


def train_unigram():
    """A unigram tokenizer, in the parts of XLM-R's but for its normalizer.

    That one is a table of 300 kB, which is NFKC but for a few characters.
    """
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120,
        special_tokens=SPECIAL,
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


def save_tokenizer(tokenizer, path):
    """Writes `tokenizer.json`, with `<mask>` as the last entry of its model.

    Returns:
        The number of entries.
    """
    described = json.loads(tokenizer.to_str())
    vocabulary = described["model"]["vocab"]
    if isinstance(vocabulary, dict):
        vocabulary["<mask>"] = len(vocabulary)
    else:
        vocabulary.append(["<mask>", 0.0])
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    return len(vocabulary)


def record_tokens(make_tokenizer, path):
    """Ids and offsets of texts, pairs and words, as JSON values."""
    tokenizer = make_tokenizer(tokenizer_file=str(path))
    recorded = {"texts": [], "pairs": [], "words": []}
    for text in TEXTS:
        found = tokenizer(text, return_offsets_mapping=True)
        recorded["texts"].append(
            {
                "text": text,
                "ids": found["input_ids"],
                "offsets": found["offset_mapping"],
            }
        )
    for one, other in PAIRS:
        # As a batch: alone, an empty second text would be taken for none.
        (ids,) = tokenizer([one], [other])["input_ids"]
        recorded["pairs"].append({"texts": [one, other], "ids": ids})
    spaced = make_tokenizer(tokenizer_file=str(path), add_prefix_space=True)
    for words in WORDS:
        found = spaced(list(words), is_split_into_words=True)
        recorded["words"].append(
            {
                "words": words,
                "ids": found["input_ids"],
                "word_ids": found.word_ids(),
            }
        )
    recorded["mask_id"] = tokenizer.mask_token_id
    return recorded


def make_model(model_class, config):
    """A model whose parameters are all random."""
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def make_inputs(vocab_size):
    """Ids and mask, int64 [B, T]; padding has its own id."""
    ids = torch.randint(4, vocab_size, (len(LENGTHS), max(LENGTHS)))
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = 1
    ids[:, 0] = 0
    return torch.where(mask > 0, ids, SIZES["pad_token_id"]), mask


def record(folder, tokenizer, make_tokenizer, model_class, config_class):
    """Records one model with its tokenizer into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    vocab_size = save_tokenizer(tokenizer, path)
    model = make_model(
        model_class, config_class(vocab_size=vocab_size, **SIZES)
    )
    model.save_pretrained(folder)
    ids, mask = make_inputs(vocab_size)
    with torch.no_grad():
        found = model(ids, attention_mask=mask, output_hidden_states=True)
    logits = found.logits
    if logits.dim() == 3:
        logits = logits[:, list(MASKED)]
    tokens = record_tokens(make_tokenizer, path)
    (folder / "expected.json").write_text(
        json.dumps(tokens, ensure_ascii=False, indent=0), encoding="utf-8"
    )
    np.savez_compressed(
        folder / "expected.npz",
        input_ids=ids.numpy().astype(np.int32),
        input_mask=mask.numpy().astype(np.int32),
        embedding_output=found.hidden_states[0].numpy(),
        sequence_output=found.hidden_states[-1].numpy(),
        logits=logits.numpy(),
        places=np.array(MASKED, np.int32),
    )
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder.name}: {vocab_size} tokens, {size / 1e3:.0f} kB")


def main():
    """Records both models into the folder that the one argument names."""
    torch.manual_seed(0)
    folder = pathlib.Path(sys.argv[1])
    record(
        folder / "roberta",
        train_byte_level(),
        RobertaTokenizerFast,
        RobertaForMaskedLM,
        RobertaConfig,
    )
    record(
        folder / "xlm-roberta",
        train_unigram(),
        XLMRobertaTokenizerFast,
        XLMRobertaForSequenceClassification,
        XLMRobertaConfig,
    )


if __name__ == "__main__":
    main()
