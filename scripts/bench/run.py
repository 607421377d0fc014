"""Measures Pith and its peers on the same files, in interleaved rounds, and prints the table with
the machine's bound beside each number. See docs/benchmarks.md. Standard library only."""
import argparse
import csv
import os
import platform
import statistics
import subprocess
import sys
import time

from beside import print_beside
from engines import DEEP, N_PROMPT, Pith, figures, keep_figures, open_peer
from read import print_read
from real import print_real
from share import print_share
from store import print_store

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Qwen3-0.6B, with random weights: speed does not depend on their values.
SHAPE = ("arch=qwen3 layers=28 width=1024 heads=16 kv_heads=8 head_dim=128 ff=3072 vocab=151936 "
         "ctx=40960 theta=1000000 eps=1e-6 tied=1").split()
# A seventh of its layers and of its vocabulary, so that weights, products and KV memory are each a
# seventh: for the part longflow-tokens on machines where the KV memory of three full sequences, 5.3
# GiB, has no room. Ratios are about the same, but a large last cache holds part of what is read.
ROOMY = 12 << 30
SEVENTH = ["layers=4" if word.startswith("layers=") else
           "vocab=21705" if word.startswith("vocab=") else word for word in SHAPE]
# The same with a tokenizer, whose tokens are the first of the vocabulary: steps of a text end at
# its blank lines.
WORDS = [word for word in SHAPE if not word.startswith("vocab=")] + [
    "vocab_file=" + os.path.join(ROOT, "models", "pith-mini.gguf"), "pad=151936"]
TESTS = {"prompt": f"prompt {N_PROMPT}", "generate": "generation"}
TYPES = ["Q8_0", "Q4_K_M"]
PARTS = ["real", "speed", "beside", "keep", "longflow", "longflow-tokens", "read", "store", "share"]
COLUMNS = ["time", "machine", "threads", "engine", "version", "setting", "model", "test", "depth",
           "round", "value", "unit"]


def model_path(args, dtype, name="qwen3-0.6b"):
    return os.path.join(args.models, f"{name}-{dtype}.gguf")


def make_model(args, dtype, name="qwen3-0.6b", shape=None):
    path = model_path(args, dtype, name)
    if not os.path.exists(path):
        os.makedirs(args.models, exist_ok=True)
        print(f"making {path}", file=sys.stderr)
        subprocess.run([os.path.join(args.build, "tests", "make_model"), path, f"type={dtype}",
                        *(shape or SHAPE)], check=True)
    return path


def machine_name():
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    name = line.split(":", 1)[1].strip()
                    break
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"


def git_commit():
    result = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return result.stdout.strip() or "unknown"


class Log:
    """Every number that was measured, kept and written as it comes."""

    def __init__(self, path, machine):
        self.rows, self.machine, self.file = [], machine, None
        self.bounds = {}    # place -> test -> tokens/s
        self.machines = {}  # threads -> what `pith bench` measured of the machine
        self.memory = {}    # (type, depth) -> bytes above weights and KV pages
        if path:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            fresh = not os.path.exists(path)
            self.file = open(path, "a", newline="")
            self.writer = csv.DictWriter(self.file, COLUMNS)
            if fresh:
                self.writer.writeheader()

    def add(self, engine, version, **values):
        row = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": self.machine,
               "engine": engine, "version": version, "unit": "tokens/s", **values}
        self.rows.append(row)
        if self.file:
            self.writer.writerow(row)
            self.file.flush()
        print(f"{engine:13s} {values.get('setting', ''):12s} {values['model']:7s} "
              f"t={values['threads']} {values['test']:8s} depth {values['depth']:5d}: "
              f"{values['value']:8.2f}", file=sys.stderr)


def settings_for(log, engine, place, number):
    """Every setting in the first round, the best settings in later ones. A deep place is too slow
    for that: it takes the settings of the depth before, if there is one."""
    known = place
    if place[2] > DEEP:
        depths = [row["depth"] for row in log.rows if row["model"] == place[0]
                  and row["depth"] < place[2]]
        known = (*place[:2], max(depths, default=place[2]))
    best = best_settings(log, engine.name, known) - {None}
    if not best or (number == 0 and known == place):
        return engine.settings
    return [(setting, options) for setting, options in engine.settings if setting in best]


def measure_round(args, log, engines, place, number):
    dtype, threads, depth = place
    for engine in engines:
        for setting, options in settings_for(log, engine, place, number):
            result = engine.measure(model_path(args, dtype), threads, depth, options)
            for test, value in result.items():
                log.add(engine.name, engine.version(), setting=setting, model=dtype,
                        threads=threads, test=test, depth=depth, round=number, value=value)
        if engine.name == "pith":
            log.bounds[place] = engine.bounds()
            log.machines[threads] = engine.answer["machine"]
            log.memory[dtype, depth] = engine.memory_above()


def values_of(log, engine, place, test):
    """setting -> values measured."""
    dtype, threads, depth = place
    values = {}
    for row in log.rows:
        if (row["engine"], row["model"], row["threads"], row["depth"], row["test"]) == \
                (engine, dtype, threads, depth, test):
            values.setdefault(row["setting"], []).append(row["value"])
    return values


def best_of(log, engine, place, test):
    """The setting with the highest median, and that median."""
    medians = {s: statistics.median(v) for s, v in values_of(log, engine, place, test).items()}
    return max(medians.items(), key=lambda item: item[1]) if medians else (None, None)


def best_settings(log, engine, place):
    return {best_of(log, engine, place, test)[0] for test in ("prompt", "generate")}


def print_table(args, log, engines, places):
    peers = [engine.name for engine in engines if engine.name != "pith"]
    for threads, machine in log.machines.items():
        print(f"\n{threads} threads: read {machine['read_bytes_per_s'] / 1e9:.1f} GB/s, f32 "
              f"{machine['f32_flop_per_s'] / 1e9:.0f} GFLOP/s, int8 "
              f"{machine['int8_op_per_s'] / 1e9:.0f} GOP/s")
    head = ["tokens/s", "threads", "pith", *peers, "pith / best peer", "bound", "pith / bound"]
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for place in places:
        dtype, threads, depth = place
        for test, words in TESTS.items():
            if test not in log.bounds[place]:
                continue
            own, bound = best_of(log, "pith", place, test)[1], log.bounds[place][test]
            best = [best_of(log, peer, place, test) for peer in peers]
            cells = [f"{value:.1f} ({setting})" if value else "-" for setting, value in best]
            others = [value for _, value in best if value]
            ratio = f"{own / max(others):.2f}" if others else "-"
            cells = [f"{dtype} {words}, depth {depth:,}", str(threads), f"{own:.1f}", *cells,
                     ratio, f"{bound:.0f}", f"{own / bound:.2f}"]
            print("| " + " | ".join(cells) + " |")


def print_start(args, log, engines):
    """Starting is a whole process: load, evaluate three tokens, end, with the file in the system's
    cache."""
    threads = args.threads[0]
    print("\n| start | seconds | peak memory, MiB |\n|---|---|---|")
    for dtype in args.types:
        for engine in engines:
            runs = [engine.start(model_path(args, dtype), threads) for _ in range(args.rounds)]
            seconds = statistics.median(r.seconds for r in runs)
            peak = statistics.median(r.peak_bytes for r in runs) / 2**20
            for test, value, unit in (("start", seconds, "s"), ("peak", peak, "MiB")):
                log.add(engine.name, engine.version(), setting="", model=dtype, threads=threads,
                        test=test, depth=0, round=0, value=value, unit=unit)
            print(f"| {engine.name} {dtype} | {seconds:.2f} | {peak:.0f} |")
    for (dtype, depth), size in log.memory.items():
        print(f"pith {dtype}, depth {depth:,}: {size / 2**20:.1f} MiB above weights and KV pages")


def print_keep(args, log, commit):
    """What keep policies cost and give; bench_keep takes its rounds in turns itself."""
    dtype, threads = args.types[0], args.threads[0]
    program = os.path.join(args.build, "bench", "bench_keep")
    rows = keep_figures(program, model_path(args, dtype), threads, args.rounds)
    for row in rows:
        if row["round"] != "median":
            log.add("pith", commit, setting="keep", model=dtype, threads=threads, test=row["test"],
                    depth=0, round=int(row["round"]), value=float(row["value"]), unit=row["unit"])
    print(f"\n| keep: triattention:v3, {dtype}, {threads} threads | measured | unit | bound "
          "| measured / bound | goal |\n|---|---|---|---|---|---|")
    for row in (row for row in rows if row["round"] == "median"):
        value, bound = float(row["value"]), float(row["bound"])
        beside = f"{bound:.4g} | {value / bound:.2f}" if bound > 0 else "- | -"
        print(f"| {row['test']} | {value:.4g} | {row['unit']} | {beside} | {row['goal'] or '-'} |")


def print_longflow(args, log, commit):
    """What choosing a victim adds to attention; bench_longflow takes its turns itself."""
    threads = args.threads[0]
    program, rows = os.path.join(args.build, "bench", "bench_longflow"), []
    for lanes, n in [("one", 1)] + [("many", n) for n in sorted({1, threads})]:
        rows += figures(program, ["--csv", "--rounds", str(min(101, 4 * args.rounds - 1)),
                                  "--lanes", lanes, "--threads", str(n)])
    print("\n| lanes, threads, type, head size, group, B | plain, us | fused, us | two, us "
          "| fused / plain, goal 1.05 | two / fused, goal 1.5 | plain, GB/s | fused, GB/s "
          "| read, GB/s |\n|" + "---|" * 9)
    for row in rows:
        place = [row[key] for key in ("lanes", "threads", "type", "dim", "group", "entries")]
        print("| " + " | ".join([", ".join(place)] + [row[key] for key in (
            "plain_us", "fused_us", "two_us", "fused_to_plain", "two_to_fused", "plain_GBps",
            "fused_GBps", "read_GBps")]) + " |")
        for way in ("plain", "fused", "two"):
            log.add("pith", commit, setting=way, model="-", threads=int(row["threads"]),
                    test="longflow " + " ".join(place[:1] + place[2:5]), depth=int(row["entries"]),
                    round=0, value=float(row[f"{way}_us"]), unit="us/lane")


def print_tokens(args, log, commit):
    """Tokens per second in one KV memory; bench_tokens takes its turns itself."""
    dtype, threads = args.types[0], args.threads[0]
    roomy = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >= ROOMY
    name, shape = ("qwen3-0.6b", SHAPE) if roomy else ("qwen3-0.6b-seventh", SEVENTH)
    model = make_model(args, dtype, name, shape)
    rows = figures(os.path.join(args.build, "bench", "bench_tokens"),
                   ["--csv", "--threads", str(threads), "--rounds", str(args.rounds), model])
    print(f"\n| {name}, 512 : 16,000 : 3,200, {dtype}, {threads} threads | sequences | ms of a step "
          "| ms of rounds | tokens/s | roofline | part of it | with products | part of it | x full "
          "| roofline's |\n|" + "---|" * 11)
    for row in rows:
        speed, bound, reach = (float(row[key]) for key in ("tokens_per_s", "roofline",
                                                           "with_products"))
        cells = [row["test"], row["sequences"], row["step_ms"], row["rounds_ms"], f"{speed:.1f}",
                 f"{bound:.1f}", f"{speed / bound:.2f}", f"{reach:.1f}", f"{speed / reach:.2f}",
                 row["to_full"], row["roofline_to_full"]]
        print("| " + " | ".join(cells) + " |")
        log.add("pith", commit, setting=row["test"], model=dtype, threads=threads,
                test="longflow-tokens", depth=0, round=0, value=speed)


def parse_arguments():
    numbers = (lambda text: [int(word) for word in text.split(",")])
    parser = argparse.ArgumentParser(prog="scripts/bench.sh", description=__doc__)
    parser.add_argument("--peer", action="append", default=[], metavar="DIR",
                        help="build folder of llama.cpp or ik_llama.cpp, or a virtual environment "
                        "with openvino-genai (the part real alone); may be repeated")
    parser.add_argument("--threads", "-t", type=numbers, default=[os.cpu_count()], metavar="N,...")
    parser.add_argument("--depths", "-d", type=numbers, default=[0, 4096], metavar="N,...")
    parser.add_argument("--types", type=lambda text: text.split(","), default=TYPES)
    parser.add_argument("--rounds", "-r", type=int, default=3)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--models", help="folder of the model files (default BUILD/bench-models)")
    parser.add_argument("--real", default=os.environ.get("PITH_MODELS"), metavar="DIR",
                        help="folder of scripts/models.sh, for the part real (default PITH_MODELS)")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="WORD,...",
                        help="of the real models those whose names hold one of these words")
    parser.add_argument("--prompts", type=numbers, default=[512], metavar="N,...",
                        help="whole prompts that real models read (512)")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=PARTS,
                        help=f"what to measure, of {','.join(PARTS)} (all)")
    parser.add_argument("--first-token", type=numbers, default=[16384], metavar="N,...",
                        help="prompts whose first token the part read waits for (16384; 32768 takes "
                        "minutes each)")
    parser.add_argument("--requests", type=int, default=0, metavar="N",
                        help="requests of `pith eval share` in the part share (0: none; 64 take an "
                        "hour)")
    parser.add_argument("--csv", metavar="FILE", help="append every number to FILE")
    args = parser.parse_args()
    if not set(args.parts) <= set(PARTS):
        parser.error(f"--parts: {','.join(args.parts)} is not of {','.join(PARTS)}")
    args.models = args.models or os.path.join(args.build, "bench-models")
    return args


def measure_speed(args, log, engines):
    places = [(dtype, threads, depth) for dtype in args.types for threads in args.threads
              for depth in args.depths]
    for number in range(args.rounds):
        for place in places:
            if number > 0 and place[2] > DEEP:
                continue
            measure_round(args, log, engines, place, number)
    print_table(args, log, engines, places)
    print_start(args, log, engines)


def main():
    args = parse_arguments()
    log = Log(args.csv, machine_name())
    commit = git_commit()
    engines = [Pith(os.path.join(args.build, "cli", "pith"), commit)]
    engines += [open_peer(folder) for folder in args.peer]
    if {"speed", "keep"} & set(args.parts):
        for dtype in args.types:
            make_model(args, dtype)
    if args.parts == ["real"] and not args.real:
        raise SystemExit("--parts real needs --real DIR or PITH_MODELS")
    print(f"Qwen3-0.6B's shape and real models, f16 KV, {log.machine}, commit {commit}, median of "
          f"{args.rounds} rounds", flush=True)
    if "real" in args.parts and args.real:
        print_real(args, log, engines)
    engines = [engine for engine in engines if engine.name != "OpenVINO"]
    if "speed" in args.parts:
        measure_speed(args, log, engines)
    if "beside" in args.parts:
        print_beside(args, log, engines[0], lambda: make_model(args, args.types[0]))
    if "keep" in args.parts:
        print_keep(args, log, commit)
    if "longflow" in args.parts:
        print_longflow(args, log, commit)
    if "longflow-tokens" in args.parts:
        print_tokens(args, log, commit)
    if "read" in args.parts:
        print_read(args, log, commit, lambda: make_model(args, args.types[0]))
    if "store" in args.parts:
        print_store(args, log)
    if "share" in args.parts:
        print_share(args, log, commit,
                    lambda: make_model(args, args.types[0], "qwen3-0.6b-words", WORDS))


if __name__ == "__main__":
    main()
