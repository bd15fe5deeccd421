"""Installs the built tree, moves it, and builds two programs against it: C++ by find_package, C by
pkg-config."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = os.environ["TILEWISE_BUILD_DIR"]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def run(*command: str, **variables: str) -> str:
    """The command's standard output; a failure shows all that it printed."""
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class InstalledTree(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tilewise-install-"))
        self.addCleanup(shutil.rmtree, self.folder)
        run("cmake", "--install", BUILD, "--prefix", str(self.folder / "first"))
        self.prefix = self.folder / "a moved tree"
        (self.folder / "first").rename(self.prefix)
        (self.lib,) = {path.parent for path in self.prefix.rglob("libtilewise.so")}

    def test_cpp_consumer_by_find_package(self) -> None:
        build = str(self.folder / "build")
        source = str(HERE / "consumer_cpp")
        run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        self.assertEqual(run(f"{build}/consumer").split(), ["tilewise", self.version(), "1.5"])

    def test_c_consumer_by_pkg_config(self) -> None:
        path = str(self.lib / "pkgconfig")
        self.assertEqual(
            run("pkg-config", "--modversion", "tilewise", PKG_CONFIG_PATH=path).strip(),
            self.version(),
        )
        # pkg-config escapes the blank in the prefix for a shell, so a shell reads it.
        binary = self.folder / "consumer"
        flags = run("pkg-config", "--cflags", "--libs", "tilewise", PKG_CONFIG_PATH=path).strip()
        source = HERE / "consumer_c/main.c"
        warnings = " ".join(WARNINGS)
        run("sh", "-c", f"cc -std=c11 {warnings} '{source}' -o '{binary}' {flags}")
        shown = run(str(binary), LD_LIBRARY_PATH=str(self.lib))
        self.assertEqual(shown.split(), ["tilewise", self.version(), "1.5"])

    def test_examples(self) -> None:
        """The examples' one line builds them, and what they print about themselves is right."""
        path = str(self.lib / "pkgconfig")
        flags = run("pkg-config", "--cflags", "--libs", "tilewise", PKG_CONFIG_PATH=path).strip()
        warnings = " ".join(WARNINGS)
        for name, last in (("score_mod", "with penalty"), ("decode_loop", "largest difference")):
            binary, source = self.folder / name, HERE.parent.parent / f"examples/{name}.cpp"
            run("sh", "-c", f"c++ -std=c++20 {warnings} '{source}' -o '{binary}' {flags} -ldl")
            shown = run(str(binary), LD_LIBRARY_PATH=str(self.lib))
            self.assertIn(last, shown.splitlines()[-1])

    def test_command_line_runs_where_it_was_moved(self) -> None:
        shown = run(str(self.prefix / "bin/tilewise"), "--version")
        self.assertIn(self.version(), shown)

    @staticmethod
    def version() -> str:
        return (HERE.parent.parent / "VERSION").read_text(encoding="utf-8").strip()


if __name__ == "__main__":
    unittest.main()
