"""`adapter-bert library` as a user runs it."""

import json
from shutil import copytree

import hub_server
import pytest
import refusals
from conftest import (
    RECORDED,
    open_bert,
    read_adapter_config,
    read_json,
    run_process,
)
from safetensors.numpy import load_file, save_file
from tiny_artifacts import CLASSIFICATION, edit_config, make_artifact
from tokenizers import Tokenizer

from adapter_bert.answering.trained_task import load_task
from adapter_bert.commands import library
from adapter_bert.data.added_tokens import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from adapter_bert.errors import UserError

# Has `make`.
pytest_plugins = ["library_folders", "hub_server"]
pytestmark = pytest.mark.older_stack

GOLDEN = RECORDED / "exchange"


def import_from(call, shelf, folder, bert, name, *more):
    return call(
        "import", shelf, folder, f"--name={name}",
        f"--init_checkpoint={bert}", *more,
    )  # fmt: skip


def test_what_parts_are_missing_is_told(
    call, make, tiny_bert, tmp_path, caplog
):
    """By `verify` and `add`; `remove` does not make it so by accident."""
    shelf = tmp_path / "shelf"
    sha256 = {}
    for seed, name in enumerate(("english", "german")):
        folder = make(name, "pfeiffer(size=4)", seed=seed)
        sha256[name] = read_adapter_config(folder)["sha256"]
    text = "stack({'english': pfeiffer(size=4)}, pfeiffer(size=2))"
    for name, carries in (("bare", False), ("whole", True)):
        make_artifact(
            tmp_path / name,
            tiny_bert,
            text,
            seed=5 + carries,
            parts={"english": sha256["english"]},
            carries_parts=carries,
        )
    call("add", shelf, tmp_path / "bare", "--name=bare")
    assert "bare cannot be used yet: " in caplog.text
    assert "needs the adapter english" in caplog.text
    refusals.check(
        lambda: call("verify", shelf), "1 of 1 adapters ", " missing ones"
    )
    for name in ("english", "german"):
        call("add", shelf, tmp_path / name, f"--name={name}")
    assert "bare: whole" in call("verify", shelf)
    call("rename", shelf, "english", "en")
    call("remove", shelf, "german")
    words = "^en is a part of bare, .* remove that first, or pass --force$"
    with pytest.raises(UserError, match=words):
        call("remove", shelf, "en")
    # Another one holds it as well.
    call("add", shelf, tmp_path / "whole", "--name=whole")
    call("remove", shelf, "en")
    assert "bare: whole" in call("verify", shelf)
    caplog.clear()
    refusals.check(
        lambda: call("remove", shelf, "whole"), "whole is a part of bare"
    )
    call("remove", shelf, "whole", "--force")
    assert "without whole these cannot be used any more: bare" in caplog.text
    call("add", shelf, tmp_path / "english", "--name=en")
    (shelf / "en" / "adapter.safetensors").write_bytes(b"")
    refusals.check(lambda: call("verify", shelf), "2 of 2 adapters of")
    # What needs others is removed as any.
    call("remove", shelf, "bare")
    call("remove", shelf, "en")


def run(*arguments):
    """Runs a command as a process."""
    return run_process(*arguments, program="library", check=False, timeout=120)


@pytest.mark.gate
def test_a_shelf_from_the_first_to_the_last_command(
    call, make, tmp_path, tiny_bert
):
    """Both results of a process, too."""
    shelf = tmp_path / "shelf"
    added = run("add", shelf, make("adapter"), "--name=first")
    assert (added.returncode, added.stdout) == (0, "added first\n")
    assert not added.stderr
    again = call("add", shelf, tmp_path / "adapter", "--name=first")
    assert again == "kept first\n"
    printed = call("rename", shelf, "first", "mine")
    assert printed == "first is called mine now\n"
    base, other = (
        f"--init_checkpoint={bert}" for bert in (tiny_bert, GOLDEN / "bert")
    )
    refusals.check(lambda: call("verify", shelf, other), "1 of 1 adapters")
    call("rename", shelf, "mine", "first")
    assert call("verify", shelf, base) == "first: whole\n"
    (shelf / "first" / "adapter.safetensors").write_bytes(b"")
    verified = run("verify", shelf)
    assert verified.returncode == 1
    assert "first: " in verified.stdout and "is damaged" in verified.stdout
    assert verified.stderr.startswith("error: 1 of 1 adapters of ")
    assert len(verified.stderr.splitlines()) == 1
    edit_config(shelf / "first", task={"name": "custom", "labels": 5})
    assert "first" in call("list", shelf)
    assert call("remove", shelf, "first") == "removed first\n"
    assert call("list", shelf, "--json") == "[]\n"


def test_the_list_is_for_people_and_for_programs(call, make, tmp_path):
    shelf = tmp_path / "shelf"
    labels = ["a, b", "größer", *"cdefghijk"]
    call("add", shelf, make("a"), "--name=few")
    many = {**CLASSIFICATION, "labels": labels}
    call("add", shelf, make("b", description=many), "--name=many")
    number = {"name": "custom", "regression": True, "pairs": True}
    call("add", shelf, make("c", description=number), "--name=number")
    (shelf / "broken").mkdir()
    entries = json.loads(call("list", shelf, "--json"))
    names = [entry["name"] for entry in entries]
    assert names == ["broken", "few", "many", "number"]
    assert "adapter_config.json does not exist" in entries[0]["problem"]
    assert entries[2]["labels"] == labels
    header, broken, few, wide, regression = call("list", shelf).splitlines()
    assert header.split() == list(library.COLUMNS)
    assert broken.startswith("broken  DAMAGED: the adapter's description")
    assert '"bad","good"' in few and "houlsby(size=4" in few
    assert "11 labels" in wide
    assert "regression" in regression
    assert header.index("method") == few.index("houlsby")
    shown = json.loads(call("show", shelf, "many"))
    assert shown["adapter_config"]["task"]["labels"] == labels
    assert shown["name"] == "many"


def test_the_list_says_nothing_to_a_terminal(call, make, tmp_path):
    """Whoever wrote an adapter has chosen these texts."""
    shelf, folder = tmp_path / "shelf", make("a")
    base = read_adapter_config(folder)["base"]
    base["name"] = "a\x1b]0;b\x07\nc\u202e\x9b"
    edit_config(folder, base=base)
    call("add", shelf, folder, "--name=mine")
    listed = call("list", shelf)
    assert len(listed.splitlines()) == 2
    assert all(line.isprintable() for line in listed.splitlines())
    assert "a ]0;b  c   " in listed
    for command in (("list", shelf, "--json"), ("show", shelf, "mine")):
        shown = call(*command)
        assert all(line.isprintable() for line in shown.splitlines())
        printed = json.loads(shown)
        entry = printed[0] if isinstance(printed, list) else printed
        assert entry["base"] == base["name"]


def test_golden_adapters_of_others_come_in_and_go_out(call, tmp_path, capsys):
    """With labels of any letters, from one program to the other."""
    shelf, bert = tmp_path / "shelf", GOLDEN / "bert"
    hubs, pefts = (GOLDEN / name / "lora_7" for name in ("adapterhub", "peft"))
    printed = import_from(call, shelf, hubs, bert, "hub")
    assert printed == "added hub, of adapterhub\n"
    labels = ["--label=a, b", "--label=größer", "--label=c"]
    import_from(call, shelf, pefts, bert, "peft.1", "--texts=two", *labels)
    call("verify", shelf, f"--init_checkpoint={bert}")
    entries = {e["name"]: e for e in json.loads(call("list", shelf, "--json"))}
    assert entries["hub"]["labels"][1] == "yes, of course"
    assert entries["peft.1"]["labels"] == ["a, b", "größer", "c"]
    shown = json.loads(call("show", shelf, "peft.1"))["adapter_config"]
    assert shown["imported"] == {"program": "peft", "version": "0.21.2"}
    assert shown["task"]["pairs"] is True
    # Scores are of what answers.
    positions = shown["bert_config"]["max_position_embeddings"]
    assert shown["training"] == {"max_seq_length": positions}
    out = tmp_path / "out"
    out.mkdir()  # The help says that an empty folder will do.
    with pytest.raises(SystemExit):
        call("export", "--help")
    assert "folder to write, new or empty" in capsys.readouterr().out
    call("export", shelf, "peft.1", out, "--to=adapterhub", "--base_model=b/b")
    head = read_json(out / "head_config.json")
    assert head["config"]["label2id"] == {"a, b": 0, "größer": 1, "c": 2}
    assert (head["name"], head["model_name"]) == ("peft_1", "b/b")
    card = (out / "README.md").read_text()
    assert "from_pretrained('b/b')" in card and "load_adapter('out'" in card
    import_from(call, shelf, out, bert, "back")
    call("export", shelf, "hub", tmp_path / "x", "--to=peft")
    written = read_json(tmp_path / "x" / "adapter_config.json")
    # A layer in the place of the pooler.
    assert written["modules_to_save"] == ["pooler", "classifier"]


def test_an_export_with_another_bert_is_refused(call, tiny_bert, tmp_path):
    """Than the adapter's, for either program, and nothing is written."""
    shelf, folder = tmp_path / "shelf", GOLDEN / "peft" / "lora_7"
    base = f"--init_checkpoint={GOLDEN / 'bert'}"
    call("import", shelf, folder, "--name=a", base)
    for program in ("adapterhub", "peft"):
        export = ["export", shelf, "a", tmp_path / program, f"--to={program}"]
        with pytest.raises(UserError, match="another BERT than that of a;"):
            call(*export, f"--init_checkpoint={tiny_bert}")
        assert not (tmp_path / program).exists()
        call(*export, base)


def test_golden_new_words_come_in_and_go_out(call, tmp_path):
    """With the rules by which the adapter's tokenizer finds them."""
    shelf, bert = tmp_path / "shelf", GOLDEN / "bert"
    folder, other = GOLDEN / "peft" / "new_words", tmp_path / "other"
    base = f"--init_checkpoint={bert}"
    call("import", shelf, folder, "--name=a", base)
    shown = json.loads(call("show", shelf, "a"))["adapter_config"]
    within, whole = shown["tokenizer"]["new_tokens"]
    assert (within["content"], within["single_word"]) == ("foo", False)
    assert whole == "mat 7"
    task = load_task(open_bert(bert), f"{shelf}/a", None)
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("The foos, a mat 7 .", "mat 7s foo"):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert 40 in expected
        assert task.tokenizer.encode_ids([text]) == [expected]
    call("export", shelf, "a", other, "--to=peft", "--base_model=b")
    config = read_json(other / "adapter_config.json")
    assert config["trainable_token_indices"] == [40, 41]
    card = (other / "README.md").read_text()
    assert "AddedToken('mat 7', single_word=True)" in card
    assert card.count("AutoTokenizer.from_pretrained('b')") == 1
    shelf = tmp_path / "again"
    call("import", shelf, other, "--name=b", base)
    again = json.loads(call("show", shelf, "b"))["adapter_config"]
    assert again["tokenizer"] == shown["tokenizer"]
    (other / "tokenizer_config.json").unlink()
    refusals.check(
        lambda: call("import", shelf, other, "--name=c", base),
        "2 new words, but ",
        " names 0 tokens",
    )
    words = (bert / "vocab.txt").read_text().replace("cat", "cow")
    (other / "vocab.txt").write_text(words)
    refusals.check(
        lambda: call("import", shelf, other, "--name=c", base),
        "vocab.txt is another vocabulary",
    )


def test_new_words_with_blanks_around_them_are_refused(call, tmp_path):
    """At once, since the adapter's tokenizer could not be made later."""
    shelf, folder = tmp_path / "shelf", tmp_path / "new_words"
    copytree(GOLDEN / "peft" / "new_words", folder)
    for path in map(folder.joinpath, ("added_tokens.json", TOKENIZER_FILE)):
        path.write_text(path.read_text().replace('"foo"', '" foo"'))
    (folder / TOKENIZER_CONFIG_FILE).unlink()
    base = f"--init_checkpoint={GOLDEN / 'bert'}"
    refusals.check(
        lambda: call("import", shelf, folder, "--name=a", base),
        "token 1 is ' foo'; expected 1",
    )
    assert "foo" not in call("list", shelf)


HEADS = GOLDEN.parent / "exchange_heads"


@pytest.mark.parametrize(
    "case, kind, more",
    [
        ("ours/peft/lora_multi_label", "multi-label", ["--multi_label"]),
        ("theirs/peft/tagging", "tagging", []),
        ("theirs/peft/choice", "multiple choice", ["--label=a", "--label=b"]),
        ("theirs/peft/masked_lm_of_bert", "masked_lm", []),
    ],
)
def test_golden_heads_of_all_kinds_come_in_and_go_out(
    call, tmp_path, case, kind, more
):
    """From one of several folders, of files of PyTorch or safetensors."""
    shelf, bert = tmp_path / "shelf", HEADS / "bert"
    several = tmp_path / "several"
    copytree(HEADS / case, several / "one")
    copytree(HEADS / "theirs/peft/tagging", several / "two")
    words = ["import", shelf, several, f"--init_checkpoint={bert}", *more]
    refusals.check(
        lambda: call(*words, "--name=a"), "holds 2 adapters, one, two"
    )
    call(*words, "--name=a", "--adapter=one")
    [entry] = json.loads(call("list", shelf, "--json"))
    assert entry["kind"] == kind
    for program in ("adapterhub", "peft"):
        out = tmp_path / program
        export = ["export", shelf, "a", out, f"--to={program}"]
        if (program, kind) == ("peft", "masked_lm"):
            with pytest.raises(UserError, match="keeps .* --init_checkpoint"):
                call(*export)
            export.append(f"--init_checkpoint={bert}")
        call(*export)
        back = tmp_path / f"back_from_{program}"
        words = ["import", back, out, "--name=a", f"--init_checkpoint={bert}"]
        call(*words, *more)
        [entry] = json.loads(call("list", back, "--json"))
        assert entry["kind"] == kind
        assert call("verify", back) == "a: whole\n"


def test_an_import_may_say_what_becomes_of_capitals(call, tmp_path):
    """Where the BERT's files contradict its vocabulary."""
    bert = tmp_path / "bert"
    copytree(GOLDEN / "bert", bert)
    (bert / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    words = call, tmp_path / "shelf", GOLDEN / "adapterhub/lora_7", bert, "hub"
    flag = "--do_lower_case=true"
    refusals.check(lambda: import_from(*words), flag)
    assert import_from(*words, flag) == "added hub, of adapterhub\n"


IMPORT = "import shelf x --init_checkpoint=y --name="


@pytest.mark.parametrize(
    "words, parts",
    [
        ("", ["COMMAND"]),
        ("steal x", ["'steal'"]),
        ("add shelf", ["FOLDER"]),
        ("list shelf --js", ["'js'"]),
        ("export s a f --to=x", ["--to=x", "adapterhub|peft"]),
        ("list nowhere", ["nowhere", "adapter-bert library add"]),
        (f"{IMPORT}all", ["'all'", "--name"]),
        (f"{IMPORT}a,A", ["'a'", "--name"]),
        (f"add shelf {GOLDEN}/adapterhub/lora_7", ["adapterhub", "import"]),
        (f"add shelf {GOLDEN}/peft/lora_7", ["peft", "import"]),
    ],
)
def test_what_cannot_be_done_is_one_line(
    call, words, parts, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    refusals.check(lambda: call(*words.split()), *parts)
    assert not list(tmp_path.glob("*/*"))


def test_an_adapter_goes_to_the_hub_and_back(
    hub, call, make, tiny_bert, tmp_path, monkeypatch, caplog
):
    """Bit by bit, and into a private repository unless it is asked."""
    call("add", tmp_path / "shelf", make(), "--name=mine")
    hub.add("org/tiny-bert", tiny_bert)
    refusals.check(
        lambda: call("push", tmp_path / "shelf", "mine", "hf:org/mine"),
        "cannot be written without a token",
    )
    assert not hub.requests
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    out = call("push", tmp_path / "shelf", "mine", "hf:org/mine")
    repository = hub.repositories["org/mine"]
    [(commit, contents)] = repository.commits.items()
    assert out == f"pushed mine to hf:org/mine@{commit}\n"
    assert repository.private and repository.messages == ["Adapter mine"]
    names = {"adapter.safetensors", "adapter_config.json", "README.md"}
    assert set(contents) == names
    card = contents["README.md"].decode()
    assert "adapter-bert library import shelf hf:org/mine --name=mine" in card
    assert "replaces" not in caplog.text
    again = tmp_path / "again"
    out = import_from(call, again, "hf:org/mine", "hf:org/tiny-bert", "other")
    assert out == f"added other, of hf:org/mine@{commit}\n"
    for name in names - {"README.md"}:
        assert (again / "other" / name).read_bytes() == contents[name]
    with pytest.raises(UserError, match="answers; leave out --label$"):
        import_from(call, again, "hf:org/mine", tiny_bert, "b", "--label=x")
    # Its BERT is compared.
    changed = copytree(tiny_bert, tmp_path / "changed")
    weights = load_file(changed / "model.safetensors")
    weights["pooler.dense.bias"] += 1
    save_file(weights, changed / "model.safetensors")
    refusals.check(
        lambda: import_from(call, again, "hf:org/mine", changed, "b"),
        "was trained on another BERT",
    )


def test_what_others_may_read_is_never_changed_by_accident(
    hub, call, make, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    shelf = tmp_path / "shelf"
    call("add", shelf, make(), "--name=mine")

    def push(*more, to="hf:org/mine"):
        call("push", shelf, "mine", to, *more)

    push("--public")
    repository = hub.repositories["org/mine"]
    assert not repository.private
    # The card may be a person's by now.
    [commit] = repository.commits
    push("--public")
    assert f"replaces README.md of commit {commit}, where" in caplog.text
    words = "is public, but private was asked; pass --public, or name"
    refusals.check(push, words)
    repository.private = True
    words = "is private, but public was asked; leave out --public, or name"
    refusals.check(lambda: push("--public"), words)
    assert len(repository.commits) == 2
    for text in ("hf:org/mine@v1", "hf:org/mine/a"):
        with pytest.raises(UserError, match="names more than a repository"):
            push(to=text)
    refusals.check(
        lambda: push("--without_head"), "is for the form of another prog"
    )
    words = 'refuses the card: .* value "my bert" is not valid.; pass another'
    with pytest.raises(UserError, match=words):
        push("--base_model=my bert", to="hf:org/new")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    refusals.check(lambda: push(to="hf:org/other"), "401", "check HF_TOKEN")
    hub.faults["/commit/"] = 400
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    # What is on other lines than the first.
    refusals.check(push, " out of order", "; try")


def test_a_composition_from_the_hub_needs_its_parts(
    hub, call, make, tiny_bert, tmp_path, monkeypatch
):
    """They are looked for in the library."""
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    english = make("english", "pfeiffer(size=4)")
    sha256 = read_adapter_config(english)["sha256"]
    folder = make(
        "mine",
        "stack({'english': pfeiffer(size=4)}, pfeiffer(size=2))",
        parts={"english": sha256},
        carries_parts=False,
    )
    for adapter in (english, folder):
        call("add", tmp_path / "shelf", adapter, f"--name={adapter.name}")
    call("push", tmp_path / "shelf", "mine", "hf:org/mine")
    again = tmp_path / "elsewhere" / "again"
    refusals.check(
        lambda: import_from(call, again, "hf:org/mine", tiny_bert, "mine"),
        "english",
    )
    call("add", again, english, "--name=english")
    import_from(call, again, "hf:org/mine", tiny_bert, "mine")
    assert call("verify", again) == "english: whole\nmine: whole\n"


@pytest.mark.parametrize("program", ["adapterhub", "peft"])
def test_other_programs_adapters_come_from_the_hub(
    hub, call, make, tiny_bert, tmp_path, monkeypatch, program
):
    """Of a folder in a repository, and of one with other files."""
    monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
    shelf = tmp_path / "shelf"
    call("add", shelf, make(text="lora(rank=2)"), "--name=mine")
    base = "--base_model=org/tiny-bert"
    call("push", shelf, "mine", "hf:org/mine", f"--to={program}", base)
    repository = hub.repositories["org/mine"]
    [contents] = repository.commits.values()
    assert "'org/mine'" in contents["README.md"].decode()
    inner = {f"a/{name}": content for name, content in contents.items()}
    others = {"model.safetensors": b"", "adapter.py": b"", "optimizer.pt": b""}
    commit = repository.commit({**inner, **others})
    for number, place in enumerate(("", "/a")):
        folder = f"hf:org/mine{place}" if place else "hf:org/mine@v1"
        name = f"got{number}"
        # The labels are named, as the same adapter is not added twice.
        labels = [f"--label={number}{x}" for x in "ab"]
        import_from(call, shelf, folder, tiny_bert, name, *labels)
        config = read_adapter_config(shelf / name)
        assert config["imported"]["program"] == program
    assert config["imported"]["hub"] == f"hf:org/mine/a@{commit}"
    fetched = {path.name for path in hub.cache.rglob("*")}
    assert not fetched & set(others)
