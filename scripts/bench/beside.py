"""The part `beside` of scripts/bench.sh: generation while other processes want the same processors,
with one thread and with more, as ratios to one. Standard library only."""
import contextlib
import os
import statistics
import subprocess
import sys

from real import MODELS

THREADS = [1, 2, 4]
BUSY = [0, 1, 2]
N_TOKEN = 96  # a second or so: helpers are tried and rest several times
LOOP = "while True:\n    pass"


@contextlib.contextmanager
def busy_processes(n):
    """n processes that compute as long as this lasts."""
    busy = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(n)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def models_of(args, make_model):
    """The real models of up to half a billion weights, or the random one."""
    models = {name: os.path.join(args.real or "", file) for name, file in MODELS.items()
              if any(word in name for word in args.only or ["SmolLM2", "Coder-0.5B Q4_K_M"])}
    models = {name: path for name, path in models.items() if args.real and os.path.exists(path)}
    return models or {"random " + args.types[0]: make_model()}


def print_beside(args, log, pith, make_model):
    models = models_of(args, make_model)
    found = {}
    for number in range(args.rounds):
        for name, path in models.items():
            for n in BUSY:
                for threads in THREADS:
                    with busy_processes(n):
                        value = pith.speed(path, threads, "generate", 0, ["-n", str(N_TOKEN)])
                    found.setdefault((name, n, threads), []).append(value)
                    log.add(pith.name, pith.version(), setting=f"beside {n}", model=name,
                            threads=threads, test="generate", depth=0, round=number, value=value)
    head = ["tokens/s beside busy processes", "busy", *(f"-t {t}" for t in THREADS),
            *(f"-t {t} / -t 1" for t in THREADS[1:])]
    print("\n| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for name in models:
        for n in BUSY:
            values = [statistics.median(found[name, n, threads]) for threads in THREADS]
            cells = [name, str(n), *(f"{value:.4g}" for value in values),
                     *(f"{value / values[0]:.2f}" for value in values[1:])]
            print("| " + " | ".join(cells) + " |", flush=True)
