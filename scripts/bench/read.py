"""The part `read`: what reading a part of the cache costs and gives. bench_read measures one layer
of Qwen3-4B's attention, peer_attention.c llama.cpp's flash attention on the same shape, and
`pith bench` the time to the first token of a whole model. Standard library only."""
import os
import shlex
import subprocess
import sys
import tempfile

from engines import figures, run

HERE = os.path.dirname(os.path.abspath(__file__))
POLICY = "quoka:budget=1024"


def cell(text, digits):
    return f"{float(text):,.{digits}f}" if text else "-"


def times(row):
    goal = f" (goal {float(row['goal']):g})" if row["goal"] else ""
    return cell(row["times"], 2) + goal


def print_rows(rows, head, cells):
    """A Markdown table of the rows; cells is a function of a row."""
    if not rows:
        return
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(cells(row)) + " |")


def print_chunks(rows, tables, peer):
    head = ["setting", "entries", "full, ms", "of peak", "llama.cpp, ms", "a part, ms", "times",
            "queries", "scores", "top-k", "gather", "attention"]

    def cells(row):
        other = peer.get(int(row["entries"])) if row["table"] == "chunk" else None
        return [row["setting"], cell(row["entries"], 0), cell(row["dense_ms"], 2),
                cell(row["peak_share"], 2), f"{1e3 * other:,.2f}" if other else "-",
                cell(row["sparse_ms"], 2), times(row), cell(row["select_ms"], 2),
                cell(row["score_ms"], 2), cell(row["top_ms"], 2), cell(row["gather_ms"], 2),
                cell(row["attend_ms"], 2)]

    print_rows([row for row in rows if row["table"] in tables], head, cells)


def print_others(rows):
    print_rows([row for row in rows if row["table"] == "prefill"],
               ["whole prompt", "tokens", "full, ms", "a part, ms", "times"],
               lambda row: [row["setting"], cell(row["entries"], 0), cell(row["dense_ms"], 0),
                            cell(row["sparse_ms"], 0), times(row)])
    print_rows([row for row in rows if row["table"] in ("decode", "int8")],
               ["setting", "tokens", "entries", "full, ms", "a part, ms", "times", "choosing, ms",
                "index, % of K and V", "chosen as by exact scores"],
               lambda row: [row["setting"], "1" if row["table"] == "decode" else "128",
                            cell(row["entries"], 0), cell(row["dense_ms"], 3),
                            cell(row["sparse_ms"], 3), times(row), cell(row["score_ms"], 3),
                            cell(row["index_pct"], 1), cell(row["overlap"], 3)])
    print_rows([row for row in rows if row["table"] == "methods"],
               ["policy", "entries", "full, ms", "a part, ms", "times", "choosing, ms", "read",
                "index, % of K and V"],
               lambda row: [row["setting"], cell(row["entries"], 0), cell(row["dense_ms"], 1),
                            cell(row["sparse_ms"], 1), times(row), cell(row["score_ms"], 1),
                            cell(row["read_share"], 3), cell(row["index_pct"], 1)])


# ---- llama.cpp's flash attention ----

def peer_libraries(build):
    """What to link of a tree's ggml; [] where there is none."""
    static = [os.path.join(build, "ggml", "src", f"lib{name}.a")
              for name in ("ggml", "ggml-cpu", "ggml-base")]
    if all(map(os.path.exists, static)):
        return [*static, "-fopenmp"]
    folder = os.path.join(build, "bin")
    if os.path.exists(os.path.join(folder, "libggml-cpu.so")):
        return [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lggml", "-lggml-cpu", "-lggml-base"]
    return []


def peer_attention(build, threads, rounds, lengths):
    """entries -> seconds of a call; {} with a printed reason where it cannot be measured."""
    build = os.path.abspath(build)
    if os.path.basename(build) == "bin":
        build = os.path.dirname(build)
    include = os.path.join(os.path.dirname(build), "ggml", "include")
    libraries = peer_libraries(build)
    if not libraries or not os.path.exists(os.path.join(include, "ggml-cpu.h")):
        print(f"{build}: no ggml library with its headers, so no flash attention to compare with")
        return {}
    with tempfile.TemporaryDirectory() as folder:
        part, program = os.path.join(folder, "peer.o"), os.path.join(folder, "peer")
        compiler, linker = (shlex.split(os.environ.get(name, other))
                            for name, other in (("CC", "cc"), ("CXX", "c++")))
        try:
            subprocess.run([*compiler, "-O2", f"-I{include}", "-c", "-o", part,
                            os.path.join(HERE, "peer_attention.c")], check=True)
            subprocess.run([*linker, "-o", program, part, *libraries, "-lpthread", "-ldl", "-lm"],
                           check=True)
            text = run([program, str(threads), str(rounds), *map(str, lengths)]).text
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            print(f"{build}: no flash attention to compare with: {error}")
            return {}
    return {int(n): float(seconds) for n, seconds in (line.split(",") for line in text.split())}


# ---- the first token ----

def print_first_token(args, pith, model, log, commit):
    """Prompts as the first that a process evaluates, in turns; each is minutes of work."""
    threads = args.threads[0]
    head = ["prompt, " + args.types[0], "full, s", f"{POLICY}, s", "times"]
    rows = []
    for n in args.first_token:
        seconds = []
        for options in ([], ["--read", POLICY]):
            row, = figures(pith, ["bench", "-m", model, "-t", str(threads), "-p", str(n), "-n", "0",
                                  "-r", "1", "--no-warm-up", "-o", "csv", *options])
            seconds.append(n / float(row["tokens_per_s"]))
            log.add("pith", commit, setting=options[-1] if options else "full",
                    model=args.types[0], threads=threads, test="first token", depth=n, round=0,
                    value=seconds[-1], unit="s")
        rows.append([f"{n:,} tokens", *(f"{value:.1f}" for value in seconds),
                     f"{seconds[0] / seconds[1]:.2f}"])
    print_rows(rows, head, lambda row: row)


def print_read(args, log, commit, model):
    """model() makes the file that first tokens are of."""
    threads = args.threads[0]
    program = os.path.join(args.build, "bench", "bench_read")
    rounds = min(100, 7 * args.rounds)
    rows = figures(program, ["--csv", "--threads", str(threads), "--rounds", str(rounds)])
    lengths = sorted({int(row["entries"]) for row in rows if row["table"] == "chunk"})
    peer = {}
    for folder in args.peer[:1]:
        peer = peer_attention(folder, threads, min(5, rounds), lengths)
    if not args.peer:
        print("\nno --peer, so no llama.cpp beside full attention")
    print(f"\nread: one layer, 32 query and 8 KV heads of 128, f16, chunks of 128, {threads} "
          f"threads, medians of {rounds}")
    print_chunks(rows, ("chunk",), peer)
    print_chunks(rows, ("gate",), {})
    print_others(rows)
    for row in rows:
        for way in ("dense", "sparse"):
            log.add("pith", commit, setting=f"{row['setting']} {way}", model="-", threads=threads,
                    test=f"read {row['table']}", depth=int(row["entries"]), round=0,
                    value=float(row[f"{way}_ms"]), unit="ms")
    for n, seconds in peer.items():
        log.add("llama.cpp", "-", setting="fa", model="-", threads=threads, test="read chunk",
                depth=n, round=0, value=1e3 * seconds, unit="ms")
    if args.first_token:
        sys.stdout.flush()
        print_first_token(args, os.path.join(args.build, "cli", "pith"), model(), log, commit)
