"""A library of adapters, and adapters to put into it."""

import pytest
from tiny_artifacts import make_artifact


@pytest.fixture
def make(tmp_path, tiny_bert):
    """Makes an adapter, and gives its folder."""

    def make(name="adapter", text="houlsby(size=4)", bert=tiny_bert, **more):
        make_artifact(tmp_path / name, bert, text, **more)
        return tmp_path / name

    return make
