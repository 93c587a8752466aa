"""Pretrained models in archives, as they are downloaded."""

# Fixtures are imported.
# ruff: noqa: F401, F811

import io
import os
import pathlib
import tarfile
import zipfile
import zlib
from contextlib import suppress
from gzip import compress
from shutil import rmtree

import pytest
import refusals
import tensorflow as tf
from conftest import open_checkpoint
from hub_modules import write_tf2
from limits import limited
from test_sources import check_values
from test_sources import google_bert as google

from adapter_bert.checkpoints import published_models, sources
from adapter_bert.errors import UserError

pytestmark = pytest.mark.older_stack

ENDS = (".zip", ".tar.gz")


def refuses(path, *parts):
    refusals.check(lambda: published_models.unpack(str(path)), *parts)


def pack(path, folder, inner=""):
    """Packs a folder's files, into a folder of the archive's if one is named.

    With an entry for each folder, as `zip -r` and `tar` write them.
    """
    names = sorted(p for p in folder.rglob("*"))
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.write(name, inner / name.relative_to(folder))
    else:
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder, inner or "./")
    return path


def check(opened, weights, config):
    check_values(opened.weights, weights)
    assert sources.read_config(opened) == config
    assert sources.read_tokenizer(opened, config).do_lower_case


@pytest.mark.parametrize("inner", ["", "uncased_L-2_H-16_A-2"])
@pytest.mark.parametrize("end", ENDS)
def test_googles_archives_are_opened(
    google, tmp_path, tiny_weights, tiny_config, end, inner
):
    name = f"uncased_L-2_H-16_A-2{end}"
    path = pack(tmp_path / name, google, pathlib.PurePath(inner))
    rmtree(google)
    opened = open_checkpoint(path)
    check(opened, tiny_weights, tiny_config)
    folder = pathlib.Path(opened.path).parent
    assert (folder.parent if inner else folder).parent == tmp_path
    # Once.
    before = os.stat(folder / "vocab.txt")
    again = open_checkpoint(path)
    assert again.path == opened.path
    assert os.stat(folder / "vocab.txt") == before
    assert not list(tmp_path.glob(".*"))


def test_what_macos_adds_to_an_archive_is_no_matter(google, tmp_path):
    path = pack(tmp_path / "bert.zip", google, pathlib.PurePath("bert"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/bert/._vocab.txt", b"")
    assert published_models.unpack(str(path)).endswith("/bert")


@pytest.mark.parametrize("inner", ["", "3"])
def test_a_downloaded_module_is_opened(
    tmp_path, tiny_bert, tiny_weights, tiny_config, inner
):
    module = write_tf2(
        tmp_path / "module", tiny_bert / "vocab.txt", tiny_weights, 2
    )
    path = pack(tmp_path / "archive.tar.gz", module, pathlib.PurePath(inner))
    rmtree(module)
    opened = open_checkpoint(path)
    check(opened, tiny_weights, tiny_config)


def test_another_archive_of_the_name_is_unpacked_too(
    google, tmp_path, tiny_weights
):
    path = pack(tmp_path / "bert.zip", google)
    first = open_checkpoint(path)
    (google / "vocab.txt").write_text("[PAD]\n")
    pack(path, google)
    second = open_checkpoint(path)
    assert first.folder != second.folder
    assert (pathlib.Path(second.folder) / "vocab.txt").read_text() == "[PAD]\n"


def test_what_a_killed_process_leaves_is_deleted(google, tmp_path):
    path = str(pack(tmp_path / "bert.zip", google))
    others = {".bert.tmp-" + "0" * 32, ".bert-x.tmp-1", ".other"}
    for name in others:
        (tmp_path / name).mkdir()
    for _ in range(2):
        child = os.fork()
        if not child:
            published_models._write_members = lambda *_: os.kill(os.getpid(), 9)
            published_models.unpack(path)
        assert os.waitpid(child, 0)[1] == 9
        # The second process has deleted what the first one left.
        [left] = {p.name for p in tmp_path.glob(".bert-*.tmp-*")} - others
    published_models.unpack(path)
    assert {p.name for p in tmp_path.glob(".*")} == others


def test_what_another_process_unpacks_is_not_deleted(
    google, tmp_path, monkeypatch
):
    path = str(pack(tmp_path / "bert.zip", google))
    write, seen = published_models._write_members, []

    def unpacked_by_two(path, folder):
        monkeypatch.setattr(published_models, "_write_members", write)
        seen.append(published_models.unpack(path))
        assert os.path.isdir(folder)
        write(path, folder)

    monkeypatch.setattr(published_models, "_write_members", unpacked_by_two)
    assert published_models.unpack(path) == seen[0]
    assert (pathlib.Path(seen[0]) / "vocab.txt").exists()


def write_one(path, name, content=b"x", link=False):
    """Writes an archive of one file, or of one link."""
    if path.name.endswith(".zip"):
        info = zipfile.ZipInfo(name)
        info.external_attr = (0o120777 if link else 0o100644) << 16
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(info, content)
    else:
        info = tarfile.TarInfo(name)
        info.size = 0 if link else len(content)
        if link:
            info.type, info.linkname = tarfile.SYMTYPE, content.decode()
        with tarfile.open(path, "w:gz") as archive:
            archive.addfile(info, io.BytesIO(content))
    return str(path)


ESCAPES = ("../x", "/x", "a/../../x", "..\\x", "C:\\x", "a/" + "../" * 40 + "x")


# Of a zip archive the rest after NUL is left out.
UNUSABLE = "a\0b", "a" * 300, "d/" * 3000 + "x"


@pytest.mark.parametrize("name", ESCAPES + UNUSABLE)
@pytest.mark.parametrize("end", ENDS)
def test_no_file_gets_out_of_the_folder(tmp_path, end, name):
    """And what cannot be unpacked leaves no part."""
    (tmp_path / "in").mkdir()
    path = write_one(tmp_path / "in" / f"bert{end}", name)
    with suppress(UserError):
        published_models.unpack(path)
    assert os.listdir(tmp_path) == ["in"]
    assert {n.split("-")[0] for n in os.listdir(tmp_path / "in")} <= {
        f"bert{end}",
        "bert",
    }
    assert not pathlib.Path("/x").exists()


def test_links_are_refused(tmp_path):
    path = write_one(tmp_path / "bert.tgz", "vocab.txt", b"/etc/x", link=True)
    refuses(path, "vocab.txt is no plain file")


@pytest.mark.parametrize("end", ENDS)
def test_what_is_far_too_large_is_refused(tmp_path, monkeypatch, end):
    monkeypatch.setattr(published_models, "MAX_BYTES", 10**6)
    path = write_one(tmp_path / f"bert{end}", "vocab.txt", bytes(10**6 + 1))
    refuses(path, "far larger than any BERT")
    assert os.listdir(tmp_path) == [f"bert{end}"]


def test_each_member_is_added_once(monkeypatch):
    """Sums of all before it would take an hour for a million of them."""
    added = []
    monkeypatch.setattr(published_models, "_check_size", added.extend)
    members = [tarfile.TarInfo(str(number)) for number in range(100)]
    assert list(published_models._members(members)) == members
    assert len(added) == 100


def zeros(count):
    """Gigabytes of zeros, compressed: a part of a stream again and again."""
    packer = zlib.compressobj(9, wbits=-15)
    part = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return part * (count // 2**20) + packer.flush()


def zip_bomb(path, name, count, claimed):
    """A zip archive of a file of zeros, whose size it tells wrongly."""
    content = zeros(count)
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.compress_size, info.file_size = len(content), claimed
    info.CRC = info.header_offset = 0
    with zipfile.ZipFile(path, "w") as archive:
        archive.fp.write(info.FileHeader(zip64=True) + content)
        archive.filelist.append(info)
        archive.start_dir, archive._didModify = archive.fp.tell(), True


def tar_bomb(path, name, count, claimed):
    info = tarfile.TarInfo(name)
    info.size = claimed
    head = zlib.compressobj(wbits=-15)
    start = head.compress(info.tobuf()) + head.flush(zlib.Z_FULL_FLUSH)
    # A gzip file's own header; its sum at the end is never come to.
    path.write_bytes(b"\x1f\x8b\x08" + bytes(7) + start + zeros(count))


@pytest.mark.parametrize("bomb", [zip_bomb, tar_bomb])
@pytest.mark.parametrize("claimed", [10 * 2**27, 1000])
def test_gigabytes_of_zeros_are_never_written(
    tmp_path, monkeypatch, bomb, claimed
):
    """Ten times the limit in one megabyte, whatever the archive says."""
    monkeypatch.setattr(published_models, "MAX_BYTES", 2**27)
    path = tmp_path / f"bert{'.zip' if bomb is zip_bomb else '.tar.gz'}"
    bomb(path, "model.safetensors", 10 * 2**27, claimed)
    assert path.stat().st_size < 2e6
    with limited(fsize=2**20):
        large = "far larger than any BERT" if claimed > 2**20 else ""
        refuses(path, f"the archive {path} cannot be unpacked: ", large)
    assert os.listdir(tmp_path) == [path.name]


def test_terabytes_of_a_sparse_file_are_refused(tmp_path, monkeypatch):
    """Its header says so, and where of these there is anything."""
    header = bytearray(tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    size = b"%011o\0" % 2**32
    header[386:482] = bytes(96)
    header[483:495] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "bert.tar.gz"
    path.write_bytes(compress(bytes(header) + bytes(1024)))
    with tarfile.open(path) as archive:
        assert archive.next().size == 2**32
    monkeypatch.setattr(published_models, "MAX_BYTES", 2**31)
    refuses(path, "far larger than any BERT")


def test_long_names_are_no_damage(tmp_path):
    name = "/".join(["a" * 90] * 3)
    path = write_one(tmp_path / "bert.tar.gz", name)
    assert (
        pathlib.Path(published_models.unpack(path)) / name[91:]
    ).read_text() == "x"


@pytest.mark.parametrize("end", ENDS)
def test_an_archive_that_is_cut_off_is_one_line(google, tmp_path, end):
    path = pack(tmp_path / f"bert{end}", google)
    content = path.read_bytes()
    for share in (0, 0.1, 0.5, 0.99):
        path.write_bytes(content[: int(len(content) * share)])
        refuses(path, "cannot be unpacked: ", "again")
    assert sorted(os.listdir(tmp_path)) == [f"bert{end}", "google"]


def test_a_wrong_sum_is_found(google, tmp_path):
    path = pack(tmp_path / "bert.tar.gz", google)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] + b"\0\0\0\0" + whole[-4:])
    refuses(path, "CRC check failed")


def test_a_folder_that_cannot_be_written_is_said(tmp_path, google, monkeypatch):
    path = pack(tmp_path / "bert.zip", google)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ADAPTER_BERT_CACHE", str(tmp_path / "file" / "x"))
    refuses(path, "set ADAPTER_BERT_CACHE to a folder")


def test_remote_archives_need_a_local_cache(google, tmp_path, monkeypatch):
    """With TensorFlow's own file system that is not the disk's."""
    path = pack(tmp_path / "bert.zip", google)
    tf.io.gfile.copy(str(path), "ram://bert.zip", overwrite=True)
    refuses("ram://bert.zip", "set ADAPTER_BERT_CACHE to a folder")
    cache = tmp_path / "cache" / "here"
    monkeypatch.setenv("ADAPTER_BERT_CACHE", str(cache))
    opened = sources.open_init_checkpoint("ram://bert.zip")
    assert opened.path.startswith(str(cache / "bert-"))
