#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks/, docs/real/ and docs/gpu/ from CSV files. A table stands
below a line that names its file, relative to the page, and ends with the last line that begins with
"|":

    <!-- tables/keep-policies.csv -->
    | name | bytes |
    |------|------:|

The page decides the alignment and the widths, by its second line; the file has the rest, cell by
cell. A table without such a line is refused.

    scripts/docs/tables.py           writes the pages anew
    scripts/docs/tables.py --check   exits with 1 where a page differs from its files
    scripts/docs/tables.py --take    writes the files from the pages, into which another script's
                                     Markdown was pasted
"""
import csv
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page for folder in ("benchmarks", "real", "gpu") for page in (ROOT / "docs" / folder).glob("*.md"))
MARK = re.compile(r"<!-- (\S+\.csv) -->$")


def line_of(cells, rule):
    """A row of a table in the widths of the line below its head."""
    out = ""
    for cell, dashes in zip(cells, rule.strip().strip("|").split("|"), strict=True):
        width = len(dashes) - 2
        out += "| " + (cell.rjust(width) if dashes.strip().endswith(":") else cell.ljust(width)) + " "
    return out + "|"


def take(path, lines):
    """Writes the file of a table that stands on a page."""
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]] for line in lines]
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows[:1] + rows[2:])


def table_of(path, rule):
    with open(path, newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    return [line_of(head, rule), rule, *(line_of(row, rule) for row in rows)]


def page_of(page, taking):
    """The page with the tables of its files; taking: these are written first."""
    lines, out, mark = page.read_text(encoding="utf-8").splitlines(), [], None
    at = 0
    while at < len(lines):
        if not lines[at].startswith("|"):
            mark = MARK.match(lines[at])
            out.append(lines[at])
            at += 1
            continue
        if mark is None:
            raise ValueError(f"{page}:{at + 1}: no line above the table names its CSV file")
        end = next((i for i in range(at, len(lines)) if not lines[i].startswith("|")), len(lines))
        path = page.parent / mark.group(1)
        if taking:
            take(path, lines[at:end])
        out += table_of(path, lines[at + 1])
        at, mark = end, None
    return "\n".join(out) + "\n"


def main():
    check, wrong = sys.argv[1:] == ["--check"], 0
    for page in PAGES:
        try:
            text = page_of(page, sys.argv[1:] == ["--take"])
        except (OSError, ValueError) as error:
            sys.exit(f"tables.py: {error}")
        if text == page.read_text(encoding="utf-8"):
            continue
        wrong += 1
        if check:
            print(f"{page.relative_to(ROOT)} differs from its CSV files; scripts/docs/tables.py writes it anew")
        else:
            page.write_text(text, encoding="utf-8")
    used = {page.parent / mark for page in PAGES for mark in re.findall(r"<!-- (\S+\.csv) -->", page.read_text(encoding="utf-8"))}
    for path in sorted(set(ROOT.glob("docs/*/tables/*.csv")) - used):
        print(f"{path.relative_to(ROOT)}: no page shows it")
        wrong += 1
    sys.exit(check and wrong > 0)


if __name__ == "__main__":
    main()
