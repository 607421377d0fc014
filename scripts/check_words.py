#!/usr/bin/env python3
"""Checks the length of sentences, paragraphs and lines in README.md, ARCHITECTURE.md and docs/.

usage: scripts/check_words.py [--count] [PAGE.md ...]

Prints each sentence of more than 25 words, each paragraph of more than 6 lines and each line of more
than 100 columns, as PAGE:LINE. Exit status 1 if there are any. Tables, code blocks and headings are
no sentences. Tables, code blocks and the targets of links may be wider. Inline code, a title in
italics and a link's text without spaces count as one word. --count prints a line per page instead:
lines, sentences, words per sentence and the longest sentence. Standard library only.
"""
import re
import sys
from pathlib import Path

MAX_WORDS, MAX_LINES, MAX_COLUMNS = 25, 6, 100
ITEM = re.compile(r"( *)([-*+]|\d+\.) +")
# A full stop behind one of these ends no sentence.
SHORT = re.compile(r"\b(?:e\.g|i\.e|al|vs|cf)\.$")


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
    text = plain(text[item.end():] if item else text)
    part = ""
    for piece in re.split(r"(?<=[.!?])[)\"']*\s+", text):
        part = f"{part} {piece}".strip()
        if not SHORT.search(part):
            yield part
            part = ""
    if part:
        yield part


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


def main():
    arguments = sys.argv[1:]
    count = "--count" in arguments
    root = Path(__file__).resolve().parent.parent
    pages = [Path(a) for a in arguments if a != "--count"] or [
        root / "README.md", root / "ARCHITECTURE.md", *sorted((root / "docs").glob("*.md"))]
    bad = False
    for page in pages:
        wrong, lengths, n_line = check(page)
        if count:
            mean = sum(lengths) / max(1, len(lengths))
            print(f"{page.name:16} {n_line:4} lines {len(lengths):4} sentences "
                  f"{mean:5.1f} words each, {max(lengths, default=0):3} at most")
            continue
        for line, complaint in sorted(wrong):
            print(f"{page}:{line}: {complaint}")
        bad |= bool(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
