"""What a program syncs, renames and deletes, and whether in the right order."""

import os
import shutil

import tensorflow as tf

from adapter_bert import files

SYNC, RENAME, REMOVE = "sync", "rename", "remove"


def watch(monkeypatch):
    """A list that grows: (what, path, new path of a rename)."""
    events = []

    def note(place, name, what):
        function = getattr(place, name)

        def noted(*arguments, **words):
            new = str(arguments[1]) if what == RENAME else ""
            events.append((what, str(arguments[0]), new))
            return function(*arguments, **words)

        monkeypatch.setattr(place, name, noted)

    note(files, "sync", SYNC)
    note(tf.io.gfile, "rename", RENAME)
    note(os, "rename", RENAME)
    note(tf.io.gfile, "remove", REMOVE)
    note(shutil, "rmtree", REMOVE)
    return events


def check(events):
    """Whatever is renamed was synced, and its folder is before all else.

    Returns:
        How many were renamed.
    """
    renames = [n for n, (what, _, _) in enumerate(events) if what == RENAME]
    for number in renames:
        _, path, new = events[number]
        assert (SYNC, path, "") in events[:number], path
        assert events[number + 1] == (SYNC, os.path.dirname(new), ""), new
    return len(renames)
