# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
import tempfile

import pytest
from specprefill.workspace import Workspace, remove_stale_workspaces


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_living_owners_folder_stays():
    workspace = Workspace()
    remove_stale_workspaces()
    assert workspace.path.is_dir()
    workspace.cleanup()
    assert not workspace.path.exists()


def test_a_killed_owners_folder_goes(tmp_path):
    owner = (
        "import os, signal; from specprefill.workspace import Workspace\n"
        "w = Workspace(); (w.path / 'log').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", owner], check=False)
    (left,) = tmp_path.glob("specprefill-*")
    assert (left / "log").exists()
    remove_stale_workspaces()
    assert not left.exists()


def test_what_others_put_there_stays(tmp_path):
    other = tmp_path / "specprefill-notes"
    other.mkdir()
    remove_stale_workspaces()
    assert other.is_dir()
