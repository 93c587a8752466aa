"""A library of adapters, and adapters to put into it."""

import dataclasses

import pytest
from tiny_artifacts import make_artifact

from adapter_bert.serving.library import AdapterLibrary
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.restored import restore_task

TASK = dataclasses.replace(custom_task(), labels=("bad", "good"))


@pytest.fixture
def make(tmp_path, tiny_bert):
    """Makes an adapter, and gives its folder."""

    def make(name="adapter", text="houlsby(size=4)", bert=tiny_bert, **more):
        task = TASK
        if "description" in more:
            task = restore_task(more["description"], {}, "a test")
        folder = tmp_path / name
        make_artifact(folder, bert, text, task, **more)
        return folder

    return make


@pytest.fixture
def shelf(tmp_path):
    return AdapterLibrary(str(tmp_path / "shelf"), create=True)
