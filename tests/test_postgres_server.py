"""The PostgreSQL server of the tests starts wherever the repository lies."""

import os
import shutil

import pytest

from benchmarks import postgres_server
from benchmarks.postgres_server import PostgresServer


@pytest.mark.postgres
@pytest.mark.linux
def test_it_starts_from_a_folder_that_others_cannot_enter(tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("only root's server runs as another user")
    programs = postgres_server.installed()
    package = programs.parent.parent
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    shutil.copytree(programs.parent, private / package.name / programs.parent.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, private / libraries.name, symlinks=True)
    for path in private.rglob("*"):  # as pip installs them under umask 077
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
    monkeypatch.setattr(
        postgres_server, "installed", lambda: private / package.name / programs.parent.name / programs.name
    )
    with PostgresServer() as server:
        assert server.sql("SELECT 6 * 7") == "42"
    assert not server.folder.exists()
