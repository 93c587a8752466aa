"""The Dockerfile, GitHub's workflow and the version fit each other."""

import re

import pytest
from conftest import ROOT

pytestmark = pytest.mark.older_stack

DOCKERFILE = (ROOT / "Dockerfile").read_text()
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_the_image_installs_a_lock_with_hashes():
    assert "--require-hashes" in DOCKERFILE
    (lock,) = set(re.findall(r"requirements/\S+?\.txt", DOCKERFILE))
    assert dict(re.findall(r"ARG (\w+)=(\S+)", DOCKERFILE))["STACK"] == "tf221"
    for stack in ("tf215", "tf221"):
        for kind in ("cpu", "cuda"):
            named = lock.replace("${STACK}", stack).replace("${KIND}", kind)
            assert (ROOT / named).exists()


def test_the_image_leaves_out_no_folder_of_the_program():
    left_out = (ROOT / ".dockerignore").read_text().split()
    for folder in ("adapter_bert", "configs", "README.md"):
        assert folder not in left_out
    assert {"tests", ".*"} <= set(left_out)


def test_the_image_has_no_rights():
    assert re.search(r"^USER [1-9]\d*$", DOCKERFILE, re.MULTILINE)


def test_the_workflow_is_the_gate():
    assert re.search(r"run: \.ci/run$", WORKFLOW, re.MULTILINE)
    assert "timeout-minutes:" in WORKFLOW
    assert re.search(r"contents: read", WORKFLOW)


def test_the_workflows_actions_are_pinned():
    used = re.findall(r"uses: (\S+)", WORKFLOW)
    assert used and all(re.fullmatch(r"\S+@[0-9a-f]{40}", x) for x in used)


def test_the_version_is_the_same_everywhere():
    found = set()
    for file, pattern in (
        ("pyproject.toml", 'version = "(.+)"'),
        ("CITATION.cff", "version: (.+)"),
    ):
        text = (ROOT / file).read_text()
        found.add(re.search(f"^{pattern}$", text, re.MULTILINE).group(1))
    assert len(found) == 1
