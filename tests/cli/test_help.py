#!/usr/bin/env python3
"""What the command says of itself: help, the version, and the sentences of policies, which are
those of the pages.

usage: test_help.py PITH SOURCE SANITIZERS

SANITIZERS is the build's PITH_SANITIZE, "" for none. Standard library only.
"""
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

PITH, SOURCE, SANITIZERS = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2]), sys.argv[3]
del sys.argv[1:]
sys.path.insert(0, str(SOURCE / "scripts"))
import check_words  # noqa: E402

COLUMNS = 100
# Verb of `pith policies --json`: its page, and the sections whose tables have rules of all
# policies.
RULES = "The rules, the same for every policy"
PAGES = {"keep": ("policies.md", {RULES: None}), "read": ("read.md", {RULES: None}),
         "share": ("share.md", {"Options": "memshare"}),
         "recall": ("recall.md", {"kv: the entries themselves": "kv", "text: the words": "text"})}


def pith(*words):
    done = subprocess.run([PITH, *words], capture_output=True, text=True, check=True)
    return done.stdout


def listed(text):
    """The names that a list of commands or tasks has."""
    return re.findall(r"^  ([a-z]+) +\S", text, re.M)


def helps():
    """(words, text) of the help of every command and task."""
    yield ["help"], pith("help")
    yield ["help", "environment"], pith("help", "environment")
    for name in listed(pith("help")):
        text = pith("help", name)
        yield ["help", name], text
        if re.match(r"usage: pith \w+ TASK", text):
            for task in listed(text.split("\n\n")[2]):
                yield ["help", name, task], pith("help", name, task)


class Help(unittest.TestCase):
    def test_every_line_fits_100_columns(self):
        n = 0
        for words, text in helps():
            n += 1
            for line in text.split("\n"):
                self.assertLessEqual(len(line), COLUMNS, f"pith {' '.join(words)}: {line}")
        self.assertGreater(n, 25)

    def test_words_name_a_thing_or_a_person(self):
        for words, text in helps():
            found = check_words.VAGUE.search(text)
            self.assertIsNone(found, f"pith {' '.join(words)}: {found and found[0]}")

    def test_lines_of_an_option_stand_in_its_column(self):
        lines = pith("help", "run").split("\n")
        first = next(i for i, line in enumerate(lines) if "--cache-weights" in line)
        self.assertRegex(lines[first], r"^  --cache-weights\[=DIR\] +keep the packed weights")
        self.assertRegex(lines[first + 1], r"^ {30}\S")


class Version(unittest.TestCase):
    def setUp(self):
        self.lines = pith("--version").split("\n")

    def test_names_version_and_commit(self):
        project = re.search(r"project\(pith VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text())
        commit = "unknown"
        if (SOURCE / ".git").exists():
            commit = subprocess.run(["git", "-C", SOURCE, "describe", "--always", "--abbrev=10",
                                     "--exclude=*"], capture_output=True, text=True).stdout.strip()
        said = re.fullmatch(r"pith (\S+) \(commit (\w+)(-dirty)?\)", self.lines[0])
        self.assertIsNotNone(said, self.lines[0])
        self.assertEqual(said[1], project[1])
        # The build may be of an earlier commit than the source has now.
        self.assertEqual(said[2] == "unknown", commit in ("unknown", ""))

    def test_names_what_was_compiled_in(self):
        kernels = re.fullmatch(r"kernels     (scalar[ a-z0-9]*); this processor uses (\w+)",
                               self.lines[1])
        self.assertIsNotNone(kernels, self.lines[1])
        self.assertIn(kernels[2], kernels[1].split())
        for library in ("PCRE2", "SQLite", "Jansson", "libedit", "libmicrohttpd", "libcurl"):
            self.assertRegex("\n".join(self.lines), rf"(?:without {library}|{library} \d)")
        self.assertRegex("\n".join(self.lines), r"\ncompiler    \w+ \d+\.\S+, \w+\n")
        self.assertIn(f"sanitizers  {SANITIZERS or 'none'}", self.lines)

    def test_knows_a_command_that_it_lacks(self):
        lacks = "without libmicrohttpd" in "\n".join(self.lines)
        served = subprocess.run([PITH, "serve", "--help"], capture_output=True, text=True)
        self.assertEqual("without libmicrohttpd" in served.stdout + served.stderr or
                         "libmicrohttpd" in served.stderr, lacks)


def plain(text):
    """A cell of a table as help writes it."""
    text = re.sub(r" ?\(\[[^\]]*\]\([^)]*\)\)", "", text.replace("\\|", "|"))
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return text.replace("`", "").replace("*", "")


def rows(page):
    """(section, first cell, cells) of every row of the page's tables."""
    section, head = "", None
    for line in page.read_text(encoding="utf-8").split("\n"):
        at = re.match(r"#+ (.*)", line)
        if at:
            section = at[1].strip("`")
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = [cell.strip() for cell in line.split("|")[1:-1]]
        else:
            yield section, head, [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


class Policies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.all = json.loads(pith("policies", "--json"))

    def test_summaries_are_those_of_the_pages(self):
        for verb in ("keep", "read"):
            page = SOURCE / "docs" / PAGES[verb][0]
            said = {}
            for _, head, cells in rows(page):
                name = re.match(r"\[`(\w+)`\]\(#", cells[0])
                if head[0] == "policy" and name:
                    said[name[1]] = plain(cells[1])
            self.assertEqual(said, {p["name"]: p["summary"] for p in self.all[verb]})

    def test_help_of_options_begins_their_rows(self):
        n = 0
        for verb, (name, general) in PAGES.items():
            policies = {p["name"]: p for p in self.all[verb]}
            for section, head, cells in rows(SOURCE / "docs" / name):
                keys = re.findall(r"`([a-z0-9-]+)`", cells[0])
                if head[:3] != ["key", "default", "meaning"] or len(keys) != 1:
                    continue
                meaning = plain(cells[2])
                owner = general.get(section, section) or next(iter(policies))
                params = [p for p in policies[owner]["params"] if p["key"] == keys[0]
                          and p["shared"] == (section == RULES)]
                if meaning.startswith(("as in ", "a rule;")):
                    continue
                self.assertEqual(len(params), 1, f"docs/{name}: {section}: {keys[0]}")
                self.assertEqual(meaning[:len(params[0]["help"])], params[0]["help"],
                                 f"docs/{name}: {section}: {keys[0]}")
                n += 1
        self.assertGreater(n, 100)

    def test_pages_name_every_option(self):
        for verb, (name, _) in PAGES.items():
            text = (SOURCE / "docs" / name).read_text(encoding="utf-8")
            for policy in self.all[verb]:
                for param in policy["params"]:
                    self.assertRegex(text, rf"`{param['key']}[`=]", f"{verb} {policy['name']}")


if __name__ == "__main__":
    unittest.main()
