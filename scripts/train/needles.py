"""What V3 leaves of passwords in texts of a small model: python3 needles.py PITH MODEL DIR.

PITH is the program, MODEL a file of the preset nano or hybrid.  DIR gets texts, statistics, and the
JSON of every cell; a cell that is there is not measured again.  Statistics are of documents of
other seeds than those measured: of all their queries, and of those that write what was asked for.
Tables of the shares of right answers go to standard output, one per length.
"""

import argparse
import json
import os
import subprocess

import numpy as np

from presets import PRESETS, Phase
from stories import Stories
from tasks import ANSWER_WEIGHT, Tasks
from train import make_tokenizer

HAYSTACK_SEED, HAYSTACK_TOKENS = 90001, 60000  # training seeds are small numbers
CALIBRATION_SEED, CALIBRATION_TEXTS, CALIBRATION_TOKENS = 777, 24, 2048
QUESTIONS, MOST_FACTS = 8, 24  # in a text of calibration
CENTRES = 64
BUDGETS = (90, 85, 50, 25, 10)
V3 = "triattention:v3,stats={all}"
MANY = "triattention:v3,stats={all-many}"
ANSWERS = "triattention:v3,stats={answers}"
ANSWERS_MANY = "triattention:v3,stats={answers-many}"
STATISTICS = ("all", "all-many", "answers", "answers-many", "map")
# Name of the row, keep policy, further options.
ROWS = (
    ("V3", V3, ()),
    ("`flat=off`", V3 + ",flat=off", ()),
    ("`granularity=layer`", V3 + ",granularity=layer", ()),
    ("`granularity=layer-head`", V3 + ",granularity=layer-head", ()),
    ("`global,distance=256`", "triattention:global,distance=256,stats={map}", ()),
    ("V3 without a file", "triattention:v3", ()),
    ("`v3-fork`", "triattention:v3-fork", ()),
    ("V3, 64 centres of all queries", MANY, ()),
    ("V3, answers' mean query", ANSWERS, ()),
    ("`flat=off`", ANSWERS + ",flat=off", ()),
    ("V3, 64 centres of answers' queries", ANSWERS_MANY, ()),
    ("`flat=off`", ANSWERS_MANY + ",flat=off", ()),
    ("`granularity=layer`", ANSWERS_MANY + ",granularity=layer", ()),
    ("`granularity=layer-head`", ANSWERS_MANY + ",granularity=layer-head", ()),
    ("V3, `--recall kv`", V3, ("--recall", "kv")),
    ("V3, `--recall text`", V3, ("--recall", "text")),
    ("`streaming`", "streaming:sinks=4", ()),
    ("`random`", "random", ()),
)


class Bench:
    def __init__(self, args):
        self.args = args
        os.makedirs(args.folder, exist_ok=True)
        self.haystack = self.path("haystack.txt")
        self.files = {n: self.path(f"{n}.stats") for n in STATISTICS}
        if not os.path.exists(self.files["map"]):
            self.prepare()

    def path(self, name):
        return os.path.join(self.args.folder, name)

    def pith(self, *words):
        done = subprocess.run(
            [self.args.pith, *words, "-m", self.args.model, "-t", str(self.args.threads)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")

    def prepare(self):
        """Texts, statistics, and a map of scores to importance for the budget of all lanes."""
        tok = make_tokenizer(PRESETS["nano"], None, self.path("tokenizer.json"))
        text = self.story(tok, HAYSTACK_SEED)
        with open(self.haystack, "wb") as file:
            file.write(text)
        with open(self.path("story.txt"), "wb") as file:
            file.write(self.story(tok, CALIBRATION_SEED))
        self.documents(tok)
        common = ["--tokens", self.path("tokens"), "-c", str(CALIBRATION_TOKENS), "-q"]
        for name, select in (("all", "all"), ("answers", self.path("ranges"))):
            for kind, count in (("", 1), ("-many", CENTRES)):
                options = ["--select", select, "--centres", str(count)]
                self.pith("calibrate", "queries", *common, *options, "-o", self.files[name + kind])
        self.pith(
            *("calibrate", "importance", "-q", "-f", self.path("story.txt"), "-c", "1000"),
            *("--keep", "triattention:global,distance=256", "-o", self.files["map"]),
        )

    def story(self, tok, seed):
        ids = []
        for sentence, opens in Stories(tok, seed).sentences(np.random.default_rng(seed), False):
            ids += (tok.encode("\n") if opens and ids else []) + sentence
            if len(ids) >= HAYSTACK_TOKENS:
                return tok.decode(ids).encode()

    def documents(self, tok):
        """Files of token ids, and of the ranges of tokens whose queries write what was asked."""
        rng, ids, ranges = np.random.default_rng(CALIBRATION_SEED), [], []
        tasks = Tasks(tok, Stories(tok, CALIBRATION_SEED), Phase(0, {}, 0, dense=0.0))
        for _ in range(CALIBRATION_TEXTS):
            n_facts = int(rng.integers(1, MOST_FACTS))
            doc, _ = tasks.examination(rng, CALIBRATION_TOKENS, n_facts, QUESTIONS)
            written = [i for i, w in enumerate(doc.weights) if w == ANSWER_WEIGHT]
            ranges += [len(ids) + i - 1 for i in written if i < CALIBRATION_TOKENS]
            ids += (doc.ids + [tok.end] * CALIBRATION_TOKENS)[:CALIBRATION_TOKENS]
        with open(self.path("tokens"), "w") as file:
            file.write(" ".join(map(str, ids)))
        with open(self.path("ranges"), "w") as file:
            file.writelines(f"{at} {at + 1}\n" for at in ranges)

    def cell(self, task, length, name, options):
        """The summary of one measurement; a refusal of the options is its text."""
        path = self.path(f"{task}-{length}-{name}.json")
        if not os.path.exists(path):
            count = ["--texts", str(self.args.texts)]
            if task == "needle":
                count = ["-d", "20,40,60,80", "--repeat", str(self.args.texts)]
            words = ["eval", task, "--style", "pith", "-f", self.haystack, "-n", str(length)]
            try:
                self.pith(*words, *count, "--no-paired", "--json", path, *options)
            except SystemExit as refusal:
                with open(path, "w") as file:
                    json.dump({"refused": str(refusal)}, file)
        with open(path) as file:
            result = json.load(file)
        return result.get("summary")

    def table(self, task, length):
        full = self.cell(task, length, "full", [])
        print(f"\n{task}, {length} tokens, {full['n']} questions, full cache {full['score']:.2f}\n")
        print(f"| | {' | '.join(f'{b} %' for b in BUDGETS)} |")
        print("|---" * (1 + len(BUDGETS)) + "|")
        for number, (name, policy, more) in enumerate(ROWS):
            cells = []
            for budget in BUDGETS:
                keep = policy.format(**self.files)
                keep += f"{',' if ':' in keep else ':'}budget={budget}%"
                key = f"{number}-{budget}"
                summary = self.cell(task, length, key, ["--keep", keep, *more])
                cells.append(f"{summary['score']:.2f}" if summary else "-")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pith")
    parser.add_argument("model")
    parser.add_argument("folder")
    parser.add_argument("--lengths", default="2048,4096")
    parser.add_argument("--tasks", default="facts,needle")
    parser.add_argument("--texts", type=int, default=6, help="of ten questions; needles: 4 each")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    bench = Bench(args)
    for task in args.tasks.split(","):
        for length in args.lengths.split(","):
            bench.table(task, int(length))


if __name__ == "__main__":
    main()
