"""The built shared library: what it needs, its SONAME, what it exports."""

import os
import re
import subprocess
import unittest

LIBRARY = os.environ["TILEWISE_LIBRARY"]
ALLOWED = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0"}
ALLOWED |= {"libdl.so.2", "ld-linux-x86-64.so.2"}
# The C API; members of namespace tilewise; their type information and tables.
EXPORTED = re.compile(r"tw_\w+|_ZNK?8tilewise\w+|_ZT[ISV]N8tilewise\w+")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class SharedLibrary(unittest.TestCase):
    def test_needs_only_the_c_and_cpp_runtimes(self) -> None:
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", LIBRARY)))
        self.assertIn("libc.so.6", needed)
        self.assertLessEqual(needed, ALLOWED)

    def test_soname_is_the_major_version(self) -> None:
        soname = re.findall(r"\(SONAME\).*\[(.+)\]", output("readelf", "-d", LIBRARY))
        self.assertEqual(soname, ["libtilewise.so.0"])

    def test_exports_only_its_own_api(self) -> None:
        lines = output("nm", "-D", "--defined-only", LIBRARY).splitlines()
        symbols = [line.split()[-1] for line in lines]
        self.assertTrue(any(name.startswith("tw_") for name in symbols), "no C API")
        self.assertTrue(any("7forward" in name for name in symbols), "no tilewise::forward")
        foreign = [name for name in symbols if not EXPORTED.fullmatch(name)]
        self.assertEqual(foreign, [])


if __name__ == "__main__":
    unittest.main()
