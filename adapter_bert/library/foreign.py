"""Adapters that a library takes from other programs, and writes for them."""

import dataclasses
import functools
import os
from typing import Any, Optional

from adapter_bert import files
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import load_task
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import (
    adapter_artifact,
    hugging_face_hub,
    run_record,
    sources,
)
from adapter_bert.checkpoints.bert_flags import BertFiles, LetterCase
from adapter_bert.checkpoints.sources import open_init_checkpoint
from adapter_bert.checkpoints.weights import HUB, identify
from adapter_bert.checkpoints.written_form import (
    tokenizer_fields,
    tokenizer_files,
)
from adapter_bert.errors import UserError
from adapter_bert.exchange import cross_encoder, foreign_adapters
from adapter_bert.exchange.foreign_base import (
    Exported,
    Foreign,
    base_name,
    exported,
)
from adapter_bert.exchange.model_card import OWN, make_adapter_card, make_card
from adapter_bert.exchange.peft_words import find_tokens
from adapter_bert.flags import Topic
from adapter_bert.library.adapter_library import (
    AdapterLibrary,
    check,
    check_name,
    copy_adapter,
)
from adapter_bert.tasks import task_model
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.kinds import MASKED_LM, VECTORS
from adapter_bert.tasks.masked_lm import WORD_EMBEDDINGS

PROGRAMS = sorted(foreign_adapters.PROGRAMS)
# Values of `--texts`, and whether rows are pairs.
PAIRS = {"one": False, "two": True, None: None}


@dataclasses.dataclass(frozen=True)
class Import(LetterCase, BertFiles):
    """Copies an adapter of AdapterHub or peft into the library.

    FOLDER is what that program wrote, or hf:ORG/NAME[/FOLDER][@REVISION] of
    Hugging Face's hub. A cross-encoder named as --init_checkpoint and FOLDER
    gives its own head.
    """

    WORDS = ("FOLDER",)
    REQUIRED = ("name", "init_checkpoint")
    name: str = Topic.TO_DO.setting(
        "",
        "Name of the adapter; of several a name for each, with commas between "
        "them.",
    )
    adapter: str = Topic.TO_DO.setting(
        "", "Name of one of several adapters in the folder."
    )
    texts: Optional[str] = Topic.DATA.setting(
        None, "Texts of a row; default: one or two.", choices=("one", "two")
    )
    label: list[str] = Topic.DATA.setting(
        [],
        "A label, tag or choice; repeat it for each, in the order of the "
        "logits; default: the labels in its files.",
        repeated=True,
    )
    multi_label: bool = Topic.DATA.setting(
        False, "Rows have any number of labels, which not all files say."
    )

    def run(self, library: AdapterLibrary, folder: str) -> None:
        names = self.name.split(",")
        for place, name in enumerate(names):
            check_name(name)
            library.check_free(name, [*library.names(), *names[:place]])
        hub = ""
        is_cross_encoder = folder == self.init_checkpoint
        if folder.startswith(HUB) and not is_cross_encoder:
            folder, hub = hugging_face_hub.fetch_adapter(folder)
            config = os.path.join(folder, adapter_artifact.CONFIG_FILE)
            if files.exists(config) and not foreign_adapters.detect(folder):
                self._add_fetched(library, folder, hub)
                return
        is_one = len(names) == 1 and not foreign_adapters.detect(folder)
        if (self.adapter or is_one) and not is_cross_encoder:
            folder = foreign_adapters.choose(folder, self.adapter)
        # The adapter's files do not say which BERT it was trained on.
        opened = open_init_checkpoint(self.init_checkpoint)
        config = sources.read_config(opened, self.bert_config_file)
        if is_cross_encoder:
            self._refuse(folder, "adapter texts label multi_label")
            adapters = {self.name: cross_encoder.read(opened, config)}
        else:
            adapters = foreign_adapters.read_all(
                folder,
                config,
                PAIRS[self.texts],
                self.label,
                self.multi_label,
                len(names) > 1,
            )
        if len(names) != len(adapters):
            raise UserError(
                f"{folder} holds {len(adapters)} adapters, "
                f"{', '.join(adapters)[:200]}, but --name is {self.name}; "
                "expected a name for each, with commas between them, or "
                "--adapter"
            )
        tasks = {foreign.task["name"] for foreign in adapters.values()}
        if tasks <= {VECTORS, MASKED_LM}:
            self._refuse(folder, "texts label multi_label")
        read_tokenizer = functools.partial(
            sources.read_tokenizer,
            opened,
            config,
            self.vocab_file,
            self.do_lower_case,
        )
        tokenizer = read_tokenizer()
        base = identify(opened.weights, encoder.list_variables(config))
        for name, (inner, foreign) in zip(names, adapters.items()):
            foreign = foreign_adapters.complete(foreign, opened.weights, config)
            task_tokenizer, new = tokenizer, foreign.method.new_words
            if new:
                inner = os.path.join(folder, inner)
                place = inner if files.is_folder(inner) else folder
                task_tokenizer = read_tokenizer(
                    find_tokens(place, tokenizer, new)
                )
            description = {
                **describe(foreign, config, folder, hub),
                "base": base.describe(),
                "tokenizer": task_tokenizer.describe(),
            }
            with files.temporary_folder() as place:
                adapter_artifact.write(place, description, foreign.values)
                library.add(place, name)
            source = f" at {hub}" if hub else ""
            print(f"added {name}, of {foreign.origin['program']}{source}")

    def _add_fetched(
        self, library: AdapterLibrary, folder: str, hub: str
    ) -> None:
        self._refuse(hub, "adapter do_lower_case texts label multi_label")
        bert = FrozenBert.open(
            self.init_checkpoint, self.bert_config_file, self.vocab_file
        )
        load_task(bert, folder, None, library.path)
        print(f"added {library.add(folder, self.name)}, of {hub}")

    def _refuse(self, adapter: str, names: str) -> None:
        passed = [f"--{name}" for name in names.split() if getattr(self, name)]
        if passed:
            raise UserError(
                f"{adapter}: its files say what it answers; leave out "
                f"{', '.join(passed)}"
            )


def write_cross_encoder(bert: FrozenBert, folder: str) -> None:
    """Writes the own head of a cross-encoder as an adapter."""
    foreign = cross_encoder.read(bert.opened, bert.config)
    description = {
        **describe(foreign, bert.config, bert.opened.path),
        "base": bert.base.describe(),
        "tokenizer": bert.tokenizer().describe(),
    }
    adapter_artifact.write(folder, description, foreign.values)


def describe(
    foreign: Foreign, config: encoder.BertConfig, folder: str, hub: str = ""
) -> dict[str, Any]:
    """Describes another program's adapter, but its BERT and its tokenizer."""
    task = restore_task(foreign.task, {}, folder)
    table = task_model.list_parameters(config, foreign.method, task.build_head)
    # What answers and scores by default.
    most = config.max_tokens
    length = min(foreign.max_seq_length or most, most)
    return {
        "method": str(foreign.method),
        "task": foreign.task,
        "bert_config": dataclasses.asdict(config),
        "parameters": {
            "total": table.total_count,
            "trained": table.trained_count,
            "kept": adapter_artifact.count(foreign.values),
        },
        "versions": run_record.versions(),
        "imported": {**foreign.origin, **({"hub": hub} if hub else {})},
        "training": {"max_seq_length": length},
    }


@dataclasses.dataclass(frozen=True)
class Form:
    """Says how an adapter is written for another program."""

    without_head: bool = Topic.TO_DO.setting(
        False, "Write the adapter alone, as AdapterHub shares languages."
    )
    base_model: str = Topic.MODEL.setting(
        "",
        "Name by which that program finds the BERT, as bert-base-uncased; "
        "default: the name of the BERT's repository or folder.",
    )
    init_checkpoint: str = Topic.MODEL.setting(
        "",
        "The BERT of the adapter, whose word embeddings peft keeps with a head "
        "of masked words, and whose vocabulary lies next to an adapter of "
        "vectors.",
    )

    def write(
        self,
        program: str,
        library: AdapterLibrary,
        name: str,
        target: str,
        folder: str,
    ) -> None:
        """Writes an adapter into a new folder, called `folder` in its card."""
        if self.without_head and program != "adapterhub":
            raise UserError(
                f"--without_head is for --to=adapterhub; leave it out for "
                f"{program}"
            )
        entry = library.entry(name)
        artifact = check(library.folder(name))
        adapter = exported(artifact, name, not self.without_head)
        if self.base_model:
            adapter = dataclasses.replace(adapter, base_name=self.base_model)
        of_vectors = adapter.head and adapter.head.kind == VECTORS
        if self.init_checkpoint:
            adapter = self._with_bert(adapter, artifact, name, program)
        elif program == "peft" and of_vectors:
            raise UserError(
                f"{name} makes vectors, which sentence-transformers reads with "
                "the BERT's vocabulary; pass the BERT as --init_checkpoint"
            )
        card = make_card(
            program,
            adapter,
            folder,
            artifact.config,
            entry.scores,
            entry.data,
        )
        foreign_adapters.write(program, target, adapter, card)

    def _with_bert(
        self,
        adapter: Exported,
        artifact: adapter_artifact.Artifact,
        name: str,
        program: str,
    ) -> Exported:
        opened = open_init_checkpoint(self.init_checkpoint)
        bert = opened.weights
        variables, shapes = encoder.list_variables(adapter.config), bert.shapes
        fits = all(shapes.get(n, s) == s for n, s in variables.items())
        expected = artifact.config["base"]["fingerprint"]
        if not fits or identify(bert, variables).fingerprint != expected:
            raise UserError(
                f"{self.init_checkpoint} is another BERT than that of {name}; "
                "expected the BERT of its training"
            )
        if not adapter.head:
            return adapter
        head = dataclasses.replace(
            adapter.head, words=bert.read(WORD_EMBEDDINGS)
        )
        tokenizer: dict[str, Any] = {}
        if program == "peft" and head.kind == VECTORS:
            path = sources.find_vocabulary(opened)
            trained = artifact.config["tokenizer"]
            lower = bool(trained.get("do_lower_case"))
            config = run_record.bert_config(artifact.config, name)
            read = sources.read_tokenizer(opened, config, path, lower)
            if read.describe() != trained:
                raise UserError(
                    f"{path} has another vocabulary, or other rules next to "
                    f"it, than {name}'s training; expected those"
                )
            fields = tokenizer_fields(config, read)
            tokenizer = tokenizer_files(path, read, **fields)
        return dataclasses.replace(adapter, head=head, tokenizer=tokenizer)


@dataclasses.dataclass(frozen=True)
class Export(Form):
    """Writes an adapter for another program.

    NAME is of the adapter, FOLDER the folder to write, new or empty.
    """

    WORDS = ("NAME", "FOLDER")
    REQUIRED = ("to",)
    to: Optional[str] = Topic.TO_DO.setting(
        None, "The other program.", choices=PROGRAMS
    )

    def run(self, library: AdapterLibrary, name: str, folder: str) -> None:
        in_card = os.path.basename(os.path.abspath(folder))
        self.write(self.to, library, name, folder, in_card)
        print(f"wrote {folder}")


@dataclasses.dataclass(frozen=True)
class Push(Form):
    """Writes an adapter into a repository of Hugging Face's hub.

    NAME is of the adapter, REPOSITORY hf:ORG/NAME, which is made if it is not
    there.
    """

    WORDS = ("NAME", "REPOSITORY")
    public: bool = Topic.TO_DO.setting(
        False, "Let everyone read the repository; default: it is private."
    )
    to: str = Topic.TO_DO.setting(
        OWN,
        "The program that is to read the adapter.",
        choices=(OWN, *PROGRAMS),
    )

    def run(self, library: AdapterLibrary, name: str, repository: str) -> None:
        in_card = hugging_face_hub.parse(repository).repository
        with files.temporary_folder() as place:
            folder = os.path.join(place, "adapter")
            if self.to == OWN:
                self._write_adapter(library, name, repository, folder)
            else:
                self.write(self.to, library, name, folder, in_card)
            message = f"Adapter {name}"
            commit = hugging_face_hub.push(
                folder, repository, self.public, message
            )
        print(f"pushed {name} to {commit}")

    def _write_adapter(
        self, library: AdapterLibrary, name: str, repository: str, folder: str
    ) -> None:
        if self.without_head:
            raise UserError(
                "--without_head is for the form of another program; leave it "
                "out, or pass --to"
            )
        entry = library.entry(name)
        config = check(library.folder(name)).config
        base = self.base_model or base_name(config["base"])
        card = make_adapter_card(
            name, base, repository, config, entry.scores, entry.data
        )
        with files.new_folder(folder) as new:
            copy_adapter(library.folder(name), new)
            files.write_text(os.path.join(new, "README.md"), card)
