"""Installs the built tree, moves it, and builds two programs against it: C++ by find_package, C by
pkg-config."""

import os
import re
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


def structs_of(header: str) -> list[tuple[str, list[str]]]:
    """The structs of a C++ header with their full names, and the last field of each line."""
    text = re.sub(r"//.*|^.*\b(?:default|constexpr|static)\b.*$", "", header, flags=re.MULTILINE)
    text = re.sub(r" = [^;,]*", "", text)
    namespaces = re.findall(r"^namespace ([\w:]+) \{", text, re.MULTILINE)
    bodies = re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL)
    field = r"\b(?!const\b)([a-z_]\w*)(?:\)\([^)]*\))?;"
    return [(f"{namespaces[0]}::{name}", re.findall(field, body)) for name, body in bodies]


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
        shown = run(f"{build}/consumer").split()
        self.assertEqual(shown, ["tilewise", self.version(), "1.5", self.version()])

    def test_a_struct_that_names_one_field_has_no_warning(self) -> None:
        """-Wextra warns of fields without a default that a designated initializer leaves out."""
        headers = sorted((self.prefix / "include/tilewise").glob("*.h"))
        cpp = [path for path in headers if "namespace tilewise" in path.read_text()]
        lines = [f"#include <tilewise/{path.name}>\n" for path in cpp]
        for path in cpp:
            for name, fields in structs_of(path.read_text()):
                for field in {fields[0], fields[-1]}:
                    lines.append(f"const auto made_{len(lines)} = {name}{{.{field} = {{}}}};\n")
        self.assertGreater(len(lines), 60)
        source = self.folder / "fields.cpp"
        source.write_text("".join(lines))
        include = f"-I{self.prefix / 'include'}"
        warnings = [*WARNINGS, "-Wno-unused-variable"]
        for compiler in filter(shutil.which, ("g++", "clang++")):
            run(compiler, "-std=c++20", *warnings, "-fsyntax-only", include, str(source))

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
        self.assertEqual(shown.split(), ["tilewise", self.version(), "1.5", self.version()])

    def test_a_subproject_keeps_to_its_own_folders(self) -> None:
        """Within another project, installed where that project says, also outside its prefix. Its
        `all` compiles a kernel pack, which takes minutes, only if asked."""
        source, build = self.folder / "whole", self.folder / "build"
        source.mkdir()
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(whole LANGUAGES CXX)\n"
            f"add_subdirectory({HERE.parent.parent} tilewise)\n"
        )
        lib = self.folder / "elsewhere/lib64"
        places = [f"-DCMAKE_INSTALL_LIBDIR={lib}", "-DCMAKE_INSTALL_DOCDIR=share/doc/whole"]
        places.append(f"-DCMAKE_INSTALL_PREFIX={self.folder}/elsewhere")
        run("cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", *places)
        rules = (build / "tilewise/cmake_install.cmake").read_text()
        self.assertIn('/share/doc/tilewise"', rules)
        self.assertNotIn("doc/whole", rules)
        (lib / "pkgconfig").mkdir(parents=True)
        shutil.copy(build / "tilewise/tilewise.pc", lib / "pkgconfig")
        for flag, folder in (("-L", lib), ("-I", lib.parent / "include")):
            (said,) = run(
                *("pkg-config", "--cflags" if flag == "-I" else "--libs-only-L", "tilewise"),
                PKG_CONFIG_PATH=str(lib / "pkgconfig"),
            ).split()
            self.assertEqual(Path(said.removeprefix(flag)).resolve(), folder)
        for asked in (False, True):
            run("cmake", *(["-DTILEWISE_PACK=90"] if asked else []), str(build))
            inputs = run("ninja", "-C", str(build), "-t", "inputs", "all").split()
            self.assertEqual("tilewise/tools/tilewise_pack" in inputs, asked)

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
        """The headers' version, in the repository."""
        header = (HERE.parent.parent / "include/tilewise/version.h").read_text(encoding="utf-8")
        return ".".join(re.findall(r"^#define TW_VERSION_\w+ (\d+)$", header, re.MULTILINE))


if __name__ == "__main__":
    unittest.main()
