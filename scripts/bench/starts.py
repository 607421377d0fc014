#!/usr/bin/env python3
"""How long a start takes: from the command to the first byte of the answer, Pith and llama.cpp by
turns on the same files. docs/starting.md has its table. Standard library only.

    scripts/bench/starts.py PITH MODEL... [--llama FOLDER] [--threads N] [--rounds N]
        [--cold] [--pause SECONDS]

FOLDER is a built tree of llama.cpp (build/bin/libllama.so). --cold takes the model's bytes out of
the system's cache before each start. Without it a start that does not count comes before each,
unless --pause waits instead: the system may need long for its memory then. Prints medians in
milliseconds, after pauses also the worst, and each kind's least processor time."""
import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital of"


def build_peer(folder, work):
    """The program that starts llama.cpp."""
    out, libraries = os.path.join(work, "start_llama"), os.path.join(folder, "build/bin")
    subprocess.run(["cc", "-O2", "-o", out, os.path.join(HERE, "start_llama.c"),
                    "-I", os.path.join(folder, "include"),
                    "-I", os.path.join(folder, "ggml/include"),
                    "-L", libraries, f"-Wl,-rpath,{os.path.abspath(libraries)}",
                    "-lllama", "-lggml", "-lggml-base"], check=True)
    return out


def forget(path):
    """Takes a file's bytes out of the system's cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start(command):
    """(milliseconds to the first byte, milliseconds of processor time)."""
    before, began = os.times(), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first = process.stdout.read(1)
        wall = time.perf_counter() - began
        errors = process.communicate()[1]
    if process.returncode != 0 or not first:
        raise SystemExit(f"starts.py: {command[0]}: {errors.decode(errors='replace').strip()}")
    after = os.times()
    used = (after.children_user + after.children_system
            - before.children_user - before.children_system)
    return wall * 1000, used * 1000


def commands_of(args, model, peer, work):
    """{kind: (command, files it reads)}."""
    pith = [args.pith, "run", "-m", model, "-p", PROMPT, "-n", "1", "-t", str(args.threads),
            "--temp", "0"]
    packed = os.path.join(work, os.path.basename(model) + ".packed")
    kinds = {"Pith": (pith, [model]),
             "Pith, mapped": (pith + [f"--cache-weights={work}"], [model, packed])}
    if peer:
        kinds["llama.cpp"] = ([peer, model, str(args.threads), PROMPT], [model])
    return kinds


def measure(args, model, peer, work):
    """Prints a row of the table."""
    kinds = commands_of(args, model, peer, work)
    start(kinds["Pith, mapped"][0])  # makes the file
    found = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind, (command, files) in kinds.items():
            if args.cold:
                for path in files:
                    forget(path)
            elif args.pause == 0:
                start(command)
            time.sleep(args.pause)
            found[kind].append(start(command))
    worst = {kind: f", worst {max(wall for wall, _ in runs):.0f}" if args.pause else ""
             for kind, runs in found.items()}
    row = [f"{kind} {statistics.median(wall for wall, _ in runs):.0f} ms{worst[kind]} "
           f"(processor {min(used for _, used in runs):.0f})" for kind, runs in found.items()]
    print(f"{os.path.basename(model)}: " + ", ".join(row), flush=True)


def main():
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("pith")
    parser.add_argument("model", nargs="+")
    parser.add_argument("--llama", help="a built tree of llama.cpp")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="with nothing in the system's cache")
    parser.add_argument("--pause", type=float, default=0, help="seconds before each start")
    args = parser.parse_args()
    work = tempfile.mkdtemp(prefix="pith-starts-", dir=os.path.dirname(args.model[0]) or ".")
    try:
        peer = build_peer(args.llama, work) if args.llama else None
        for model in args.model:
            measure(args, model, peer, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
