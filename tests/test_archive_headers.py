"""What stands before the files of a tar archive, which Python reads."""

import os
import tarfile

import pytest
from test_archives import tar_header, tar_of

from adapter_bert.checkpoints import handles
from adapter_bert.errors import UserError

pytestmark = pytest.mark.older_stack


@pytest.mark.parametrize(
    "content",
    [b"1" * 20_000, b"2 " * 10_000 + b"="],
    ids=["digits", "keys in keys"],
)
@pytest.mark.parametrize("kind", handles.EXTENDED)
def test_extended_headers_take_no_time(tmp_path, kind, content):
    """Before 3.11.10, Python takes the square of their size for each."""
    path = tmp_path / "bert.tar.gz"
    path.write_bytes(tar_of(tar_header("x", kind, content)))
    with pytest.raises(UserError, match="its extended headers are too long"):
        handles.unpack(str(path))


def test_many_extended_headers_are_no_damage(tmp_path):
    path = tmp_path / "bert.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for number in range(handles.MAX_FILES):
            info = tarfile.TarInfo(f"{number:0150d}")
            info.mtime = 0.5
            archive.addfile(info)
    assert len(os.listdir(handles.unpack(str(path)))) == handles.MAX_FILES
