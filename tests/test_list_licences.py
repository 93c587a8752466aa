"""docs/licences.md has what the locks install."""

import re

import pytest
from conftest import ROOT

from lab import list_licences

pytestmark = pytest.mark.older_stack

FULL_TEXT = "Copyright Somebody\n        All of the text"


@pytest.fixture
def environment(tmp_path):
    """A virtual environment with packages that say it in different ways."""
    for name, lines in {
        "numpy": "License-Expression: BSD-3-Clause\nLicense: other",
        "tokenizers": "Classifier: Topic :: Text\n"
        "Classifier: License :: OSI Approved :: Apache Software License",
        "opt_einsum": f"License: {FULL_TEXT}",
        "namex": "Summary: of names",
        "not-locked": "License: MIT",
    }.items():
        folder = tmp_path / f"lib/python3/site-packages/{name}-1.dist-info"
        folder.mkdir(parents=True)
        text = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1\n{lines}\n"
        (folder / "METADATA").write_text(text)
    return str(tmp_path)


def test_what_packages_say(environment):
    assert list_licences.licences(environment) == {
        "numpy": "BSD-3-Clause",
        "tokenizers": "Apache Software License",
        "opt-einsum": "Copyright Somebody",
        "namex": "not stated",
    }


def test_the_page_of_an_environment(environment):
    page = list_licences.page([environment, environment])
    assert "\n| `numpy` | BSD-3-Clause |\n| `opt-einsum` |" in page
    assert "`tensorflow-cpu`" in page.partition("## Not looked at")[2]


def test_the_page_names_every_locked_package_once():
    text = (ROOT / "docs" / "licences.md").read_text()
    table, _, rest = text.partition("## Not looked at")
    packages = re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)
    packages += re.findall("`(.+?)`", rest.replace("`nvidia-*`", ""))
    assert sorted(packages) == sorted(list_licences.locked()), (
        "run: .venv/bin/python -m lab.list_licences .venv .venv-tf221"
    )
