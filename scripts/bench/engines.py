"""The programs that are measured: how each is asked for the same work, and how its answer is read.

An engine measures one place: a model, a number of threads and a depth (tokens already in the
cache). It returns tokens per second of a prompt of N_PROMPT tokens and of generating N_GEN there,
with f16 keys and values. `speed` measures one thing alone: a whole prompt of n tokens ("prompt") or
generating N_GEN behind n ("generate"). Standard library only.
"""
import csv
import json
import os
import subprocess
import time
from dataclasses import dataclass

N_PROMPT, N_GEN = 512, 32
DEEP = 4096  # beyond it only generation is measured: reading a prompt there takes a peer an hour


def prompt_at(depth):
    return N_PROMPT if depth <= DEEP else 0


def amount(test, n):
    """Options of `pith bench` and of llama.cpp's bench program for one thing alone."""
    if test == "prompt":
        return ["-p", str(n), "-n", "0"]
    return ["-p", "0", "-n", str(N_GEN), "-d", str(n)]


@dataclass(frozen=True)
class Run:
    """A finished program: what it printed, its wall time and its peak resident memory."""
    text: str
    seconds: float
    peak_bytes: int


def run(command):
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True) as child:
        text = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {child.returncode}")
    return Run(text, time.monotonic() - begin, usage.ru_maxrss * 1024)


class Pith:
    name = "pith"
    settings = [("default", [])]

    def __init__(self, program, commit):
        self.program, self.commit, self.answer = program, commit, None

    def version(self):
        return self.commit

    def measure(self, model, threads, depth, options):
        """Keeps the whole answer: bounds, memory and what the machine can do stand in it."""
        text = run([self.program, "bench", "-m", model, "-t", str(threads), "-p",
                    str(prompt_at(depth)), "-n", str(N_GEN), "-d", str(depth), "-r", "1", "-o",
                    "json", *options]).text
        self.answer = json.loads(text)
        return {row["test"]: row["tokens_per_s"] for row in self.answer["rows"]}

    def speed(self, model, threads, test, n, options):
        text = run([self.program, "bench", "-m", model, "-t", str(threads), "-r", "1", "-o", "json",
                    *amount(test, n), *options]).text
        self.answer = json.loads(text)
        return self.answer["rows"][0]["tokens_per_s"]

    def bounds(self):
        """test -> tokens per second that the machine allows at the place measured last."""
        return {row["test"]: row["bound"] for row in self.answer["rows"]}

    def memory_above(self):
        """Peak bytes of the last measurement above the weights and the KV pages in use."""
        answer = self.answer
        return answer["peak_rss_bytes"] - answer["weight_bytes"] - answer["kv_peak_bytes"]

    def start(self, model, threads):
        """A process that loads the model, evaluates three tokens and ends."""
        return run([self.program, "logits", "-m", model, "-t", str(threads), "--ids", "1,2,3"])


def figures(program, options):
    """Rows of the CSV that a program of bench/ prints."""
    return list(csv.DictReader(run([program, *options]).text.splitlines()))


def keep_figures(program, model, threads, rounds):
    """The costs and gains of a keep policy by bench_keep: rows of its CSV, one for each
    figure and round and one for each figure's median."""
    return figures(program, ["--csv", "--threads", str(threads), "--rounds", str(rounds), model])


class LlamaBench:
    """What llama.cpp's bench program and that of its forks share."""

    def __init__(self, program):
        self.program = program

    def version(self):
        return self.commit

    def rows(self, model, threads, options):
        text = run([self.program, "-m", model, "-t", str(threads), "-r", "1", "-o", "json",
                    *options]).text
        rows = json.loads(text[text.index("["):])
        self.commit = rows[0]["build_commit"]
        return rows

    def start(self, model, threads):
        """A process that loads the model, evaluates three tokens and ends."""
        return run([self.program, "-m", model, "-t", str(threads), "-r", "1", "-p", "3", "-n", "0",
                    *self.no_warmup])


class LlamaCpp(LlamaBench):
    name = "llama.cpp"
    commit = "unknown"
    settings = [("fa=1", ["-fa", "on"]), ("fa=0", ["-fa", "off"])]
    no_warmup = ["--no-warmup"]

    def measure(self, model, threads, depth, options):
        rows = self.rows(model, threads, ["-p", str(prompt_at(depth)), "-n", str(N_GEN), "-d",
                                          str(depth), *options])
        return {"prompt" if row["n_prompt"] else "generate": row["avg_ts"] for row in rows}

    def speed(self, model, threads, test, n, options):
        return self.rows(model, threads, [*amount(test, n), *options])[0]["avg_ts"]


class IkLlamaCpp(LlamaBench):
    """Its bench program knows no depth: generation after a prompt is asked for by -gp, and a prompt
    at a depth is the difference of two prompts."""
    name = "ik_llama.cpp"
    commit = "unknown"
    settings = [(f"fa={fa},rtr={rtr}", ["-fa", str(fa), "-rtr", str(rtr)])
                for fa in (1, 0) for rtr in (0, 1)]
    no_warmup = ["-w", "0"]

    def measure(self, model, threads, depth, options):
        if depth == 0:
            rows = self.rows(model, threads, ["-p", str(N_PROMPT), "-n", str(N_GEN), *options])
            return {"prompt" if row["n_prompt"] else "generate": row["avg_ts"] for row in rows}
        prompts = f"{depth},{depth + N_PROMPT}" if prompt_at(depth) else "0"
        rows = self.rows(model, threads, ["-p", prompts, "-n", "0", "-gp", f"{depth},{N_GEN}",
                                          *options])
        seconds = {row["n_prompt"]: row["avg_ns"] / 1e9 for row in rows if row["n_gen"] == 0}
        generate = [row["avg_ts"] for row in rows if row["n_gen"] == N_GEN]
        result = {"generate": generate[0]}
        if seconds:
            result["prompt"] = N_PROMPT / (seconds[depth + N_PROMPT] - seconds[depth])
        return result

    def speed(self, model, threads, test, n, options):
        if test == "generate":
            what = ["-p", "0", "-n", str(N_GEN)] if n == 0 else \
                ["-p", "0", "-n", "0", "-gp", f"{n},{N_GEN}"]
        else:
            what = amount(test, n)
        return self.rows(model, threads, [*what, *options])[-1]["avg_ts"]


class OpenVino:
    """OpenVINO GenAI by a Python that has it; ask_openvino.py asks it. It reads
    GGUF files of the types Q8_0, Q4_0, Q4_K and Q6_K, and attends in bf16 where the processor
    does."""
    name = "OpenVINO"
    settings = [("default", [])]

    def __init__(self, python):
        self.python, self.release = python, "unknown"

    def version(self):
        return self.release

    def speed(self, model, threads, test, n, options):
        """None where it does not read the file."""
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ask_openvino.py")
        try:
            answer = json.loads(run([self.python, script, model, str(threads), test, str(n),
                                     str(N_GEN)]).text.splitlines()[-1])
        except (RuntimeError, IndexError):
            return None
        self.release = answer["version"]
        return answer["tokens_per_s"]


def open_peer(folder):
    """The engine whose llama-bench lies in folder, folder/bin or folder/build/bin, or OpenVINO
    where folder is a virtual environment that has it."""
    for place in ("", "bin", "build/bin"):
        program = os.path.join(folder, place, "llama-bench")
        if os.access(program, os.X_OK):
            text = run([program, "--help"]).text
            return (LlamaCpp if "--n-depth" in text else IkLlamaCpp)(program)
    python = os.path.join(folder, "bin", "python")
    if os.access(python, os.X_OK):
        return OpenVino(python)
    raise SystemExit(f"{folder}: no llama-bench in it, its bin or its build/bin, and no bin/python")
