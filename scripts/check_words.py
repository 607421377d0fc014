#!/usr/bin/env python3
"""Checks the words of the pages, and of the comments and texts of the C files in CLEAN.

usage: scripts/check_words.py [--count] [PAGE.md | FILE.c | FILE.h | FOLDER ...]

In a page: prints each sentence of more than 25 words, each paragraph of more than 6 lines and each
line of more than 100 columns, as PAGE:LINE. Tables, code blocks and headings are no sentences.
Tables, code blocks and the targets of links may be wider. Inline code, a title in italics and a
link's text without spaces count as one word.

In C: prints each sentence of more than 25 words, and each that has a word or a subject of VAGUE, in
comments and in string literals; in tests/ only in comments. Lines that are indented within a
comment or a text are formulas, tables or code. It also prints each line of a comment of more than
100 columns.

Exit status 1 if anything is printed. --count prints a line per page instead: lines, sentences,
words per sentence and the longest sentence; of C also the sentences of VAGUE. Without names it
checks README.md and the like, docs/ and CLEAN; a folder is added to CLEAN when it is. Standard
library only.
"""
import re
import sys
from pathlib import Path

MAX_WORDS, MAX_LINES, MAX_COLUMNS = 25, 6, 100
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
CLEAN = ["include", "src", "cli", "eval", "server", "bench", "examples", "fuzz", "tests"]
# Their strings are texts for models or assembly, not for people; so are the strings of tests.
DATA = {"emu_fibers.h", "facts_pool.c", "recursion_paper.c", "ruler_niah.c", "tools_grammar.c", "words.c"}
# Words that name no thing and no person. A sentence with one of them has a plainer form: "the bytes
# of a page", not "what a page takes"; "no thread waits", not "nobody waits".
VAGUE = re.compile(r"\b(nobody|anybody|somebody|whoever|those of|so many|of what|what an?)\b", re.I)
# Subjects that are neither: the sentence begins with a clause in place of a noun. Questions may.
SQL = re.compile(r"[A-Z]+ [A-Z]+ ")
HEAD = re.compile(r"\w+\.[ch] - ")  # the name at the top of a file
# A paper's authors and title may make a sentence long.
CITED = re.compile(r"\barXiv\b|\b(?:19|20)\d\d\)?[:.]|et al\.,")
SUBJECT = re.compile(r"(?:What|Whatever|Who|That of|Those (?:of|that|which|who|in|with))\b(?!.*\?)")
ITEM = re.compile(r"( *)([-*+]|\d+\.) +")
# A full stop behind one of these ends no sentence.
SHORT = re.compile(r"(?:\b(?:e\.g|i\.e|al|vs|cf)|\.)\.$")


def blocks(text):
    """(line number, kind, lines) of each block; kind is text, code, table or head."""
    found, fenced, blank, indent = [], False, True, 0

    def add(kind, number, line, new):
        if new or not found or found[-1][1] != kind:
            found.append((number, kind, []))
        found[-1][2].append(line)

    for number, line in enumerate(text.split("\n"), 1):
        bare, item = line.strip(), ITEM.match(line)
        depth = len(line) - len(line.lstrip(" "))
        if bare.startswith("```") or fenced:
            fenced ^= bare.startswith("```")
            add("code", number, line, False)
        elif not bare:
            blank = True
            continue
        elif bare.startswith("|"):
            add("table", number, line, False)
        elif bare.startswith("#") and depth == 0:
            indent = 0
            add("head", number, line, True)
        elif depth >= indent + 4 and (blank or found and found[-1][1] == "code"):
            add("code", number, line, False)
        elif item:
            indent = item.end()
            add("text", number, line, True)
        else:
            if depth == 0 and blank:
                indent = 0
            add("text", number, line, blank)
        blank = False
    return found


def plain(text):
    """The text as it is read: code and titles are one word each, links are their text."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    return re.sub(r"(?<![*\w])\*(?!\*)[^*]+\*(?!\*)", "title", text).replace("*", "")


def sentences(lines):
    text = " ".join(line.strip() for line in lines)
    item = ITEM.match(text)
    return split(plain(text[item.end():] if item else text))


def split(text):
    part = ""
    for piece in re.split(r"(?<=[.!?])[)\"']*\s+", text):
        part = f"{part} {piece}".strip()
        if not SHORT.search(part):
            yield part
            part = ""
    if part:
        yield part


# A run of string literals with only white space or a PRI macro between, a character, a comment.
C_TEXT = re.compile(r'''(?P<string>"(?:\\.|[^"\\\n])*"(?:\s*(?:PRI\w+\s*)?"(?:\\.|[^"\\\n])*")*)'''
                    r"""|'(?:\\.|[^'\\\n])*'"""
                    r"|(?P<line>//[^\n]*(?:\n[ \t]*//[^\n]*)*)"
                    r"|/\*(?P<block>.*?)\*/", re.S)


def paragraphs(lines):
    """(index of the first line, lines) of each paragraph; indented lines and rulers are none."""
    rest = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    found, open_, margin = [], False, min(rest, default=0)
    for i, line in enumerate(lines):
        bare = line.strip()
        if not bare or not any(c.isalpha() for c in bare) or (
                i > 0 and len(line) - len(line.lstrip()) >= margin + 2):
            open_ = False
            continue
        if not open_:
            found.append((i, []))
        found[-1][1].append(bare)
        open_ = True
    return found


def c_texts(text):
    """(line number, kind, lines) of each comment and each string of a C file."""
    for at in C_TEXT.finditer(text):
        number = text.count("\n", 0, at.start()) + 1
        if at["string"]:
            parts = re.findall(r'"((?:\\.|[^"\\\n])*)"', at["string"])
            whole = "".join(parts)
            if " " in whole and not SQL.match(whole):
                yield number, "string", re.sub(r"\\(.)", lambda e: "\n" if e[1] == "n" else e[1],
                                               whole).split("\n")
        elif at["line"]:
            yield number, "comment", [line.strip()[2:] for line in at["line"].split("\n")]
        elif at["block"]:
            lines = at["block"].split("\n")
            if len(lines) > 1 and all(line.strip()[:1] in ("", "*") for line in lines[1:]):
                lines = [lines[0], *(line.strip()[1:] for line in lines[1:])]
            yield number, "comment", lines


def words(sentence):
    return sum(any(c.isalnum() for c in word) for word in sentence.split())


def check(path):
    """(complaints, words of each sentence, lines) of a page."""
    text = path.read_text(encoding="utf-8")
    wrong, lengths = [], []
    for number, kind, lines in blocks(text):
        if kind in ("text", "head"):
            for i, line in enumerate(lines):
                columns = len(re.sub(r"\]\([^)]*\)|https?://\S+", "", line))
                if columns > MAX_COLUMNS:
                    wrong.append((number + i, f"{columns} columns: {line.strip()[:60]}"))
        if kind != "text":
            continue
        if len(lines) > MAX_LINES:
            wrong.append((number, f"{len(lines)} lines: {lines[0].strip()[:60]}"))
        for sentence in sentences(lines):
            lengths.append(words(sentence))
            if lengths[-1] > MAX_WORDS:
                wrong.append((number, f"{lengths[-1]} words: {sentence}"))
    return wrong, lengths, text.count("\n")


def check_c(path):
    """The same of a C file; the sentences of VAGUE have a complaint each."""
    text = path.read_text(encoding="utf-8")
    wrong, lengths, raw = [], [], text.split("\n")
    for number, kind, lines in c_texts(text):
        if kind == "string":
            if path.name in DATA or "tests" in path.parts:
                continue
        else:
            for at, line in enumerate(raw[number - 1:number - 1 + len(lines)], number):
                if len(line) > MAX_COLUMNS and "http" not in line:
                    wrong.append((at, f"{len(line)} columns: {line.strip()[:60]}"))
        for i, paragraph in paragraphs(lines):
            first = number if kind == "string" else number + i
            for sentence in split(re.sub(r"`[^`]*`", "code", " ".join(paragraph))):
                lengths.append(words(HEAD.sub("", sentence)))
                vague = VAGUE.search(sentence) or SUBJECT.match(sentence)
                if lengths[-1] > MAX_WORDS and not CITED.search(sentence):
                    wrong.append((first, f"{lengths[-1]} words: {sentence}"))
                if vague:
                    wrong.append((first, f'"{vague[0]}": {sentence}'))
    return wrong, lengths, text.count("\n")


def expand(path):
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.rglob("*") if p.suffix in (".c", ".h"))


def main():
    arguments = sys.argv[1:]
    count = "--count" in arguments
    root = Path(__file__).resolve().parent.parent
    pages = [Path(a) for a in arguments if a != "--count"] or [
        *(root / name for name in PAGES), *sorted((root / "docs").rglob("*.md")),
        *(root / name for name in CLEAN)]
    bad = False
    for page in [file for page in pages for file in expand(page)]:
        wrong, lengths, n_line = (check_c if page.suffix in (".c", ".h") else check)(page)
        if count:
            mean = sum(lengths) / max(1, len(lengths))
            print(f"{page.name:16} {n_line:4} lines {len(lengths):4} sentences "
                  f"{mean:5.1f} words each, {max(lengths, default=0):3} at most"
                  + f", {sum(c.startswith(chr(34)) for _, c in wrong)} vague" * (page.suffix != ".md"))
            continue
        for line, complaint in sorted(wrong):
            print(f"{page}:{line}: {complaint}")
        bad |= bool(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
