"""The peers' files: fetched by git at a pinned state, or of a source distribution by pip, or from
what is at hand."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "peers-suites"


class Source(NamedTuple):
    owner: str
    name: str
    ref: str  # a tag, or a commit
    paths: tuple[str, ...]  # that a suite needs


class Distribution(NamedTuple):
    """A package as its authors publish its source."""

    name: str
    version: str
    paths: tuple[str, ...]


class Fetched(NamedTuple):
    folder: Path
    commit: str  # "" for a plain folder or a distribution


def _git(*arguments: str, binary: bool = False) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *arguments], capture_output=True, text=not binary, check=False)


def _clone(source: Source, into: Path) -> str:
    """One commit without its history, and of that the files that are asked for."""
    url = f"https://github.com/{source.owner}/{source.name}"
    for command in (
        ("init", "--quiet", str(into)),
        ("-C", str(into), "remote", "add", "origin", url),
        (
            "-C",
            str(into),
            "fetch",
            "--quiet",
            "--depth=1",
            "--filter=blob:none",
            "origin",
            source.ref,
        ),
        ("-C", str(into), "checkout", "--quiet", "FETCH_HEAD", "--", *source.paths),
    ):
        done = _git(*command)
        if done.returncode:
            shutil.rmtree(into, ignore_errors=True)
            sys.exit(
                f"peers-suites: {source.name} {source.ref} could not be fetched from {url}:\n"
                f"{done.stderr.strip()}\n"
                "Without a network, give a folder that holds the repository: --from DIR"
            )
    return _git("-C", str(into), "rev-parse", "FETCH_HEAD^{commit}").stdout.strip()


def _at_hand(source: Source, places: Path) -> Path | None:
    """The repository, bare or not, or a plain folder of its files."""
    names = (source.name, f"{source.name}.git", f"{source.owner}+{source.name}/repo")
    return next((places / name for name in names if (places / name).is_dir()), None)


def _copy(source: Source, found: Path, into: Path) -> str:
    """The pinned state where the repository has it, else its newest one."""
    if _git("-C", str(found), "rev-parse", "--git-dir").stdout.strip() not in (".", ".git"):
        shutil.copytree(found, into)
        return ""
    pinned = _git("-C", str(found), "rev-parse", "--quiet", "--verify", f"{source.ref}^{{commit}}")
    commit = pinned.stdout.strip() or _git("-C", str(found), "rev-parse", "HEAD").stdout.strip()
    archive = _git("-C", str(found), "archive", commit, "--", *source.paths, binary=True)
    if archive.returncode:
        sys.exit(f"peers-suites: {found}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(into, filter="data")
    return commit


def _unpack(source: Distribution, places: Path | None, into: Path) -> Path:
    """The folders of the archive, which pip fetches where it is not at hand."""
    archive = f"{source.name}-{source.version}.tar.gz"
    if places is None:
        places = into.parent
        command = ["pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
        command += ["--no-build-isolation", f"--dest={places}", f"{source.name}=={source.version}"]
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"peers-suites: pip cannot fetch {archive}:\n{done.stderr.strip()}")
    elif not (places / archive).exists():
        sys.exit(f"peers-suites: {places} holds no {archive}")
    inside = tuple(f"{source.name}-{source.version}/{path}/" for path in source.paths)
    with tarfile.open(places / archive) as files:
        members = [member for member in files if member.name.startswith(inside)]
        files.extractall(into, members, filter="data")
    return into / f"{source.name}-{source.version}"


def fetch(source: Source | Distribution, places: Path | None) -> Fetched:
    """The source's files in a folder of build/, made anew."""
    into = BUILD / "fetched" / source.name
    shutil.rmtree(into, ignore_errors=True)
    into.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, Distribution):
        return Fetched(_unpack(source, places, into), "")
    if places is None:
        return Fetched(into, _clone(source, into))
    found = _at_hand(source, places)
    if found is None:
        sys.exit(f"peers-suites: {places} holds no {source.name} of {source.owner}")
    return Fetched(into, _copy(source, found, into))
