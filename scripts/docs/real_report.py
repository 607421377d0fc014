#!/usr/bin/env python3
"""Draws docs/figures/real.html, the page of docs/real.md: accuracy against budget of some policies,
needles by depth, and the positions that lanes keep while a text is read.

    scripts/docs/real_report.py OUT DIR_OF_MODELS DIR_OF_DATA PAGE

OUT is that of scripts/docs/real.sh, whose cells it takes. PITH=build/cli/pith. Standard library
only.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

FACTS = ["full.100.stream.own", "kvzap.10.stream.global", "kvzap.25.stream.global",
         "kvzap.50.stream.global", "kvzap.25.stream.own", "triattention.25.stream.global",
         "triattention.50.stream.global", "triattention.25.stream.own",
         "triattention.50.stream.own", "v3.10.stream.own", "v3.25.stream.own", "v3.50.stream.own",
         "h2o.25.stream.own", "h2o.50.stream.own", "snapkv.25.stream.own",
         "snapkv.50.stream.own", "kvzap+kv:type=stored.10.stream.global",
         "v3+kv:type=stored.10.stream.own"]
NEEDLES = ["full.100.stream.own", "kvzap-recent.25.stream.global", "kvzap-recent.50.stream.global",
           "triattention.25.stream.global", "v3.25.stream.own", "h2o.25.stream.own"]


def short(text):
    """A result names files without their folders."""
    return re.sub(r"(stats=|\")(/[^\",]*/)([^/\",]+)", r"\1\3", text)


def cells(out):
    for model, task, names in (("coder-0.5b", "facts", FACTS), ("smollm2", "needle", NEEDLES)):
        for name in names:
            with open(os.path.join(out, f"{model}.{task}.{name}.json")) as file:
                yield json.load(file)


def kept(pith, out, models, data):
    """What one policy keeps of a text. The statistics are named without a folder."""
    command = [pith, "eval", "kept", "-m",
               os.path.join(os.path.abspath(models), "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
               "-f", os.path.join(os.path.abspath(data), "text", "wiki.test.raw"), "-n", "1536",
               "--every", "192", "--chat", "--keep", "kvzap:budget=25%,stats=coder-0.5b.stats",
               "--json", "-"]
    return json.loads(subprocess.run(command, cwd=out, check=True, stdout=subprocess.PIPE).stdout)


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__.strip())
    out, models, data, page = sys.argv[1:]
    pith = os.path.abspath(os.environ.get("PITH", "build/cli/pith"))
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "real.jsonl"), "w") as file:
            for result in [*cells(out), kept(pith, out, models, data)]:
                file.write(short(json.dumps(result)) + "\n")
        subprocess.run([pith, "eval", "report", "real.jsonl", "-o", os.path.abspath(page)],
                       cwd=folder, check=True)


if __name__ == "__main__":
    main()
