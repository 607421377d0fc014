"""The table of docs/llama-server.md, from the files that pytest's --junitxml wrote.

    table.py RUN.xml ... > table.md

A line is a test of llama-server, all its parameters together: how many pass, and why others do not.
"""
import sys
import xml.etree.ElementTree as tree


def outcome(case):
    """(passes, fails or not ours; why) of one case."""
    skipped = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None:
        return "FAILS UNEXPECTEDLY", ""
    if skipped is None:
        return "passes", ""
    why = skipped.get("message") or ""
    return ("fails" if skipped.get("type") == "pytest.xfail" else "not ours"), why


def main():
    tests = {}
    for path in sys.argv[1:]:
        for case in tree.parse(path).iter("testcase"):
            name = case.get("classname").split(".")[-1], case.get("name").split("[")[0]
            tests.setdefault(name, []).append(outcome(case))
    print("| file | test | result | why |\n|---|---|---|---|")
    for (file, name), found in sorted(tests.items()):
        kinds = {}
        for kind, why in found:
            kinds.setdefault(kind, []).append(why)
        result = next(iter(kinds)) if len(kinds) == 1 else ", ".join(
            f"{len(v)} of {len(found)} {'pass' if k == 'passes' else k}" for k, v in kinds.items())
        why = "; ".join(sorted({w for v in kinds.values() for w in v if w}))
        print(f"| {file[5:]} | {name[5:]} | {result} | {why} |")


if __name__ == "__main__":
    main()
