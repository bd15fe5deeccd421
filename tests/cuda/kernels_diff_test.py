"""`tilewise kernels diff`: packs whose kernels are small ELF files written here."""

import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CLI = os.environ.get("TILEWISE_CLI", "")
SKIPPED = 77


def cubin(sections: dict[str, bytes]) -> bytes:
    """An ELF-64 file with these sections, as far as the command reads one."""
    names, name_at = b"\0", {}
    for name in [*sections, ".shstrtab"]:
        name_at[name] = len(names)
        names += name.encode() + b"\0"
    body, headers = b"", struct.pack("<IIQQQQIIQQ", *[0] * 10)
    for name, content in [*sections.items(), (".shstrtab", names)]:
        at = 64 + len(body)
        headers += struct.pack("<IIQQQQIIQQ", name_at[name], 1, 0, 0, at, len(content), 0, 0, 1, 0)
        body += content
    count = len(sections) + 2
    start = struct.pack("<QIHHHHHH", 64 + len(body), 0, 64, 0, 0, 64, count, count - 1)
    return (b"\177ELF" + bytes(36) + start) + body + headers


def checksum(data: bytes) -> str:
    """FNV-1a of 128 bits over the bytes and their number, as the cache computes it."""
    state = 0x6C62272E07BB014262B821756295C58D
    for byte in data + struct.pack("<Q", len(data)):
        state = (state ^ byte) * 0x0000000001000000000000000000013B % (1 << 128)
    return f"{state:032x}"


def entry(name: str, config: str, code: bytes, line: int = 1, arch: int = 80) -> bytes:
    """A kernel of a pack. `line` stands for what a moved source changes beside the code."""
    text = cubin({".debug_line": bytes([line]), f".text.{name}": code})
    head = (
        f"tilewise-kernel 1\nkey {name}{config}{arch}{line}\nname {name}\nconfig {config}\n"
        f"compiler 13.0\narch {arch}\nregisters {len(code)}\nbytes {len(text)}\n"
        f"checksum {checksum(text)}\n\n"
    )
    return head.encode() + text + b"\n"


class KernelsDiff(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self) -> None:
        self.folder.cleanup()

    def diff(self, old: list[bytes], new: list[bytes]) -> subprocess.CompletedProcess[str]:
        paths = []
        for name, entries in (("old.pack", old), ("new.pack", new)):
            paths.append(Path(self.folder.name) / name)
            paths[-1].write_bytes(b"".join(entries))
        command = [CLI, "kernels", "diff", *map(str, paths)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_moved_sources_do_not_show(self) -> None:
        old = [entry("fwd", ".n = 1", b"abc"), entry("bwd", "", b"de")]
        new = [entry("bwd", "", b"de", line=9), entry("fwd", ".n = 1", b"abc", line=9)]
        done = self.diff(old, new)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "2 the same, 0 differ, 0 renamed, 0 missing, 0 added\n")

    def test_other_code_shows(self) -> None:
        old = [entry("fwd", ".n = 1", b"abc"), entry("fwd", ".n = 1", b"abc", arch=90)]
        new = [entry("fwd", ".n = 1", b"abc"), entry("fwd", ".n = 1", b"abcd", arch=90)]
        done = self.diff(old, new)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("differs: fwd sm_90a {.n = 1}\n", done.stdout)
        self.assertIn("registers 3 -> 4", done.stdout)
        self.assertIn("1 the same, 1 differ, 0 renamed, 0 missing, 0 added", done.stdout)

    def test_missing_fails_and_added_does_not(self) -> None:
        first, second = entry("fwd", ".n = 1", b"abc"), entry("fwd", ".n = 2", b"x")
        done = self.diff([first, second], [first])
        self.assertEqual(done.returncode, 1)
        self.assertIn("missing: fwd sm_80 {.n = 2}", done.stdout)
        done = self.diff([first], [first, second])
        self.assertEqual(done.returncode, 0)
        self.assertIn("added: fwd sm_80 {.n = 2}", done.stdout)

    def test_config_written_otherwise(self) -> None:
        done = self.diff([entry("fwd", ".n = 1", b"a")], [entry("fwd", ".n = 1, .m = 0", b"a")])
        self.assertEqual(done.returncode, 0)
        self.assertIn("0 the same, 0 differ, 1 renamed, 0 missing, 0 added", done.stdout)
        done = self.diff([entry("fwd", ".n = 1", b"a")], [entry("fwd", ".n = 1, .m = 0", b"b")])
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 missing, 1 added", done.stdout)

    def test_refuses_what_is_no_pack(self) -> None:
        good = entry("fwd", "", b"abc")
        for bad in (
            b"",
            b"not a pack",
            good.replace(b"abc", b"abd"),
            good.replace(b".text", b".tex_"),
        ):
            done = self.diff([good], [bad])
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("new.pack", done.stderr)


if __name__ == "__main__":
    if not CLI:
        sys.exit(SKIPPED)
    unittest.main()
