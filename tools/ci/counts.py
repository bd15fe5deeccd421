"""What the house counts of itself, beside what it wants. `./tw count`."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from lint import CPP_SUFFIXES, MAX_FILE_LINES, MAX_SUBJECT, ROOT, SHORT_SUBJECTS_SINCE, git

KERNELS = ROOT / "src" / "cuda" / "kernels"
TEXT_SUFFIXES = {*CPP_SUFFIXES, ".py", ".cmake"}
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
README_LINES = 150


def tracked(under: str = "") -> list[Path]:
    """Tracked files below a folder, links left out."""
    files = (ROOT / name for name in git("ls-files", under or "."))
    return [file for file in files if file.is_file() and not file.is_symlink()]


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def text(files: Iterable[Path]) -> str:
    return "\n".join(f.read_text(encoding="utf-8") for f in files if f.suffix in CPP_SUFFIXES)


def long_files(files: Iterable[Path], most: int) -> list[str]:
    """Files of more lines, by name."""
    return [f"{f.relative_to(ROOT)} ({lines(f)})" for f in files if lines(f) > most]


def counts() -> dict[str, tuple[int | list[str], int]]:
    """What is counted: how many there are, or which, and how many are wanted at most."""
    everything = tracked()
    folders = [folder for folder in KERNELS.iterdir() if folder.is_dir()]
    readmes = [folder / "README.md" for folder in folders if (folder / "README.md").is_file()]
    bare = [str(f.relative_to(ROOT)) for f in folders if not (f / "README.md").is_file()]
    sources = [f for f in everything if f.suffix in TEXT_SUFFIXES]
    subjects = git("log", "--format=%s", f"{SHORT_SUBJECTS_SINCE}..HEAD")
    code = text(tracked("src"))
    return {
        f"sources of more than {MAX_FILE_LINES} lines": (long_files(sources, MAX_FILE_LINES), 0),
        "files beside the folders of src/cuda/kernels": (
            [f.name for f in everything if f.parent == KERNELS and f.name != "README.md"],
            0,
        ),
        "kernel folders without a README": (bare, 0),
        f"kernel READMEs of more than {README_LINES} lines": (long_files(readmes, README_LINES), 0),
        "lines of `using Base::` in src": (len(re.findall(r"using Base::", code)), 0),
        "macros of src": (sorted(set(MACRO.findall(code))), 5),
        "lines of docs/performance.md": (lines(ROOT / "docs" / "performance.md"), 200),
        "lines of SVG": (sum(lines(f) for f in everything if f.suffix == ".svg"), 5000),
        f"commit subjects of more than {MAX_SUBJECT} signs": (
            [subject for subject in subjects if len(subject) > MAX_SUBJECT],
            0,
        ),
    }


def main() -> int:
    rows = counts()
    width = max(map(len, rows))
    failed = False
    print(f"{'':{width}}  {'is':>6}  {'at most':>7}")
    for name, (found, most) in rows.items():
        count = found if isinstance(found, int) else len(found)
        print(f"{name:{width}}  {count:6}  {most:7}{'' if count <= most else '  *'}")
        failed = failed or count > most
        if count > most and not isinstance(found, int):
            print("".join(f"    {item}\n" for item in found), end="")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
