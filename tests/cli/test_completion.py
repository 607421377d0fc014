#!/usr/bin/env python3
"""What shells complete: the answers of `pith completion words`, and the scripts of bash, zsh and
fish in the shells themselves, as far as they are installed.

usage: test_completion.py PITH
"""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

PITH = str(Path(sys.argv.pop(1)).resolve())


def words(*line):
    """The word that says what else there is, and the words that are found."""
    said = subprocess.run([PITH, "completion", "words", "--", *line], capture_output=True, text=True,
                          check=True).stdout.split("\n")
    return said[0], [one.split("\t")[0] for one in said[1:] if one]


class Words(unittest.TestCase):
    def test_commands(self):
        more, found = words("")
        self.assertEqual(more, "none")
        for name in ("run", "serve", "eval", "help", "completion"):
            self.assertIn(name, found)
        self.assertEqual(words("ev"), ("none", ["eval"]))
        self.assertEqual(words("eval", "needl")[1], ["needle"])
        self.assertIn("environment", words("help", "")[1])
        self.assertEqual(words("help", "eval", "needl")[1], ["needle"])
        self.assertEqual(words("nothing", ""), ("none", []))

    def test_options(self):
        self.assertEqual(words("run", "--kv-m")[1], ["--kv-memory"])
        self.assertIn("-ctk", words("run", "-")[1])
        self.assertNotIn("--split-mode", words("run", "--")[1])  # taken, but not offered
        self.assertEqual(words("run", "-n", "3", "--temp", "1", "--pag")[1], ["--page"])

    def test_values(self):
        self.assertEqual(words("run", "--page", ""), ("none", ["16", "32", "64"]))
        self.assertEqual(words("run", "--page=3")[1], ["--page=32"])
        self.assertEqual(words("run", "-ctk", "turbo")[1], ["turbo4", "turbo3", "turbo2"])
        self.assertIn("chatml", words("chat", "--chat-template", "")[1])
        self.assertEqual(words("run", "-m", "")[0], "files")
        self.assertEqual(words("run", "--cache-weights=")[0], "folders")
        self.assertEqual(words("serve", "--slot-save-path", "")[0], "folders")
        self.assertEqual(words("info", "")[0], "files")
        self.assertEqual(words("quantize", "a", "b", "Q4_K")[1], ["Q4_K_M", "Q4_K"])
        self.assertEqual(words("policies", "kvz")[1], ["kvzap", "kvzip"])

    def test_policies(self):
        self.assertEqual(words("run", "--keep", "stre")[1], ["streaming"])
        self.assertEqual(words("run", "--keep=stre")[1], ["--keep=streaming"])
        self.assertEqual(words("run", "--keep", "streaming:bud")[1], ["streaming:budget="])
        self.assertEqual(words("run", "--keep", "streaming:budget=5,sin")[1],
                         ["streaming:budget=5,sinks="])
        self.assertIn("triattention:v3", words("run", "--keep", "triattention:")[1])
        self.assertEqual(words("run", "--keep", "kvzap:stats=")[0], "files")
        self.assertEqual(words("run", "--recall", "")[1], ["kv", "text", "none"])
        self.assertEqual(words("eval", "replay", "--read-policy", "quok")[1], ["quoka"])


def typed(shell, start, line, folder):
    """What an interactive shell has on its line after `line` and a tab."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(TERM="dumb", PATH=f"{folder}/bin:{os.environ['PATH']}", HOME=folder,
                          LC_ALL="C.UTF-8", INPUTRC="/dev/null", COLUMNS="300")
        os.execvp(shell[0], shell)
    said = b""

    def wait_for(text, seconds=20.0):
        nonlocal said
        until = time.monotonic() + seconds
        while text not in said and time.monotonic() < until:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    said += os.read(terminal, 4096)
                except OSError:
                    break
        return text in said

    try:
        os.write(terminal, start.encode() + b"\necho read''y\n")
        if not wait_for(b"ready\r\n"):
            raise AssertionError(f"{shell[0]} says {said!r}")
        # The line is completed, then printed by echo in place of being run.
        said = b""
        os.write(terminal, line.encode() + b"\t")
        # What is typed now waits in the terminal until the shell has completed.
        os.write(terminal, b"\x01echo '<' \x05'>'\n")
        wait_for(b"\r\n<")
        wait_for(b">\r\n")
        return re.sub(r"\s+", " ", said.decode(errors="replace").split("\r\n<")[-1])
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


class Shells(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kept = tempfile.TemporaryDirectory()
        cls.folder = cls.kept.name
        os.mkdir(cls.folder + "/bin")
        os.symlink(PITH, cls.folder + "/bin/pith")
        (Path(cls.folder) / "a-model.gguf").write_text("")
        for shell in ("bash", "zsh", "fish"):
            script = subprocess.run([PITH, "completion", shell], capture_output=True, text=True,
                                    check=True).stdout
            (Path(cls.folder) / shell).write_text(script)

    @classmethod
    def tearDownClass(cls):
        cls.kept.cleanup()

    def need(self, shell):
        if shutil.which(shell) is None:
            self.skipTest(f"there is no {shell}")

    CASES = (("pith ev", "pith eval"), ("pith run --kv-m", "pith run --kv-memory"),
             ("pith run --keep stre", "pith run --keep streaming"),
             ("pith run --keep streaming:bud", "pith run --keep streaming:budget="),
             ("pith run --keep streaming:budget=5,sin", "pith run --keep streaming:budget=5,sinks="),
             ("pith run --keep=stre", "pith run --keep=streaming"),
             ("pith run -m a-mo", "pith run -m a-model.gguf"))

    def test_bash(self):
        self.need("bash")
        for line, expected in self.CASES:
            with self.subTest(line):
                self.assertIn(expected, typed(["bash", "--norc", "--noprofile", "-i"], "source ./bash",
                                              line, self.folder))

    def test_zsh(self):
        self.need("zsh")
        for line, expected in self.CASES:
            with self.subTest(line):
                self.assertIn(expected,
                              typed(["zsh", "-f", "-i"],
                                    "unsetopt zle_bracketed_paste; bindkey -e; "
                                    "autoload -Uz compinit; compinit -u; source ./zsh",
                                    line, self.folder))

    def test_fish(self):
        self.need("fish")
        for line, expected in self.CASES:
            said = subprocess.run(["fish", "--no-config", "-c",
                                   f"source ./fish; complete -C '{line}'"], cwd=self.folder,
                                  capture_output=True, text=True,
                                  env=os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                                                    "HOME": self.folder}).stdout
            with self.subTest(line):
                self.assertIn(expected.split(" ")[-1], [one.split("\t")[0]
                                                        for one in said.split("\n")])


if __name__ == "__main__":
    unittest.main()
