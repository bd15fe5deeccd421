"""The stage of ./tw test that builds the Python package with pip and tests what it installed."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from results import SHOWN_LINES, Result, Status, read_pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = str(ROOT / ".venv/bin/python")
WHEELS = ROOT / "build/wheel"
SHARES = 2  # processes of pytest: most tests use one core
# The library's objects come from the release build: a wheel's own folder would compile them again.
BUILD = [
    *("--config-settings", "build-dir=build/release"),
    *("--config-settings", "cmake.define.TILEWISE_TESTS=ON"),
    *("--config-settings", "cmake.define.TILEWISE_CLI=ON"),
]
# What scikit-build-core wrote into that tree's cache: a later build of it must not need .venv.
FORGET = [
    f"-U{pattern}"
    for pattern in ("Python*", "_Python*", "PYTHON*", "SKBUILD*", "nanobind*", "CMAKE_MODULE_PATH")
] + ["-UCMAKE_PREFIX_PATH", "-UCMAKE_FIND_ROOT_PATH_MODE_PACKAGE"]
Run = Callable[[list[str], Path], bool]


def make_wheel(run: Run, log: Path) -> bool:
    """The wheel, installed into .venv."""
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    release = ROOT / "build/release"
    if not (release / "build.ninja").exists() and not run(["cmake", "--preset", "release"], log):
        return False
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check"]
    own = ["--no-deps", "--no-build-isolation"]
    built = run([*pip, "wheel", ".", *own, "-w", str(WHEELS), *BUILD], log)
    run(["cmake", str(release), "-DTILEWISE_PYTHON=OFF", *FORGET], log)
    wheels = [str(path) for path in WHEELS.glob("*.whl")]
    return built and run([*pip, "install", "--no-deps", "--force-reinstall", *wheels], log)


def checked(name: str, run: Run, command: list[str], log: Path, says: str = "") -> Result:
    """One check that is one command, with its own log, which must hold `says`."""
    log.unlink(missing_ok=True)
    if run(command, log) and says in log.read_text(encoding="utf-8"):
        return Result("python", name, Status.PASSED)
    end = log.read_text(encoding="utf-8").splitlines()[-SHOWN_LINES:]
    return Result("python", name, Status.FAILED, "\n".join(end))


def run_pytest(run: Run, logs: Path, share: int) -> list[Result]:
    """One file in SHARES, from `share` on."""
    log, junit = logs / f"pytest-{share}.log", logs / f"pytest-{share}.xml"
    log.unlink(missing_ok=True)
    junit.unlink(missing_ok=True)
    files = sorted((ROOT / "python/tests").glob("test_*.py"))[share::SHARES]
    run([PYTHON, "-m", "pytest", "-q", f"--junit-xml={junit}", *map(str, files)], log)
    if junit.exists():
        return read_pytest(junit, "python")
    end = log.read_text(encoding="utf-8").splitlines()[-SHOWN_LINES:]
    return [Result("python", f"pytest, share {share}", Status.FAILED, "\n".join(end))]


def run_mypy(run: Run, logs: Path, without_torch: bool) -> list[Result]:
    if without_torch:
        return [Result("python", "mypy", Status.SKIPPED, "--no-torch: it reads torch's types")]
    return [checked("mypy", run, [PYTHON, "-m", "mypy"], logs / "mypy.log")]


def run_python(run: Run, logs: Path, without_torch: bool) -> list[Result]:
    """pip wheel, auditwheel, mypy, pytest."""
    log = logs / "wheel.log"
    log.unlink(missing_ok=True)
    if not make_wheel(run, log):
        end = log.read_text(encoding="utf-8").splitlines()[-SHOWN_LINES:]
        return [Result("python", "pip wheel", Status.FAILED, "\n".join(end))]
    wheel = str(next(WHEELS.glob("*.whl")))
    audit = [PYTHON, "-m", "auditwheel", "show", wheel]
    results = [
        Result("python", "pip wheel", Status.PASSED),
        # It ends well for a wheel that runs here alone, too: the tag is what counts.
        checked("auditwheel", run, audit, logs / "auditwheel.log", 'tag: "manylinux_'),
    ]
    if without_torch:
        os.environ["TILEWISE_NO_TORCH"] = "1"
    with ThreadPoolExecutor(SHARES) as pool:
        parts = [
            pool.submit(run_pytest, run, logs, 0),
            pool.submit(run_mypy, run, logs, without_torch),
        ]
        parts += [pool.submit(run_pytest, run, logs, share) for share in range(1, SHARES)]
        for part in parts:
            results += part.result()
    return results
