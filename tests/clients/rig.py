"""What the tests of real clients share: two servers, checks that are counted, and the line that
run.py makes a table of. A client that is not installed is a skip (77).

A check is a method `check_what_it_is` of one class; it may raise Skip with a reason."""

import importlib.metadata
import json
import os
import socket
import sys
import threading
import time
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))
import server_rig

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
KEY = "a-key-of-the-tests"
MINI = os.path.join(ROOT, "models", "pith-mini.gguf")
MODELS = os.environ.get("PITH_MODELS") or os.path.join(ROOT, "build-models")
CODER = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"

# Nothing asks the network: no telemetry, no price lists, no hubs.
os.environ.update({
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False",
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1", "OPENAI_AGENTS_DISABLE_TRACING": "1", "DO_NOT_TRACK": "1",
    "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "TOKENIZERS_PARALLELISM": "false",
    "OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY})


class Skip(Exception):
    """Why a check was not done."""


class Model:
    """A server with a model and a key, started at the first use and ended with the program."""

    running = []

    def __init__(self, path, *options):
        self.path, self.options, self.server = path, options, None

    def start(self):
        if self.server is None:
            if not os.path.exists(self.path):
                raise Skip(f"there is no {CODER}; scripts/models.sh build-models coder-0.5b fetches it")
            server_rig.MODEL = self.path
            self.server = server_rig.Server("--api-key", KEY, *self.options).__enter__()
            Model.running.append(self.server)
        return self.server

    @property
    def url(self):
        return f"http://127.0.0.1:{self.start().port}"

    @property
    def v1(self):
        return self.url + "/v1"

    def metric(self, name):
        text = self.start().get("/metrics", headers={"Authorization": "Bearer " + KEY}).body
        lines = [line.split() for line in server_rig.without_model(text.decode()).splitlines()]
        return float(next(line[1] for line in lines if line and line[0] == name))


mini = Model(MINI, "--alias", "mini", "-np", "4")
one = Model(MINI, "--alias", "one", "-np", "1")  # whose second request waits
coder = Model(os.path.join(MODELS, CODER), "--alias", "coder", "-np", "4", "-c", "8192")


def beside_another(call):
    """What a call comes to whose answer waits for more than a second for another's."""
    body = {"prompt": "The", "n_predict": 7500, "ignore_eos": True, "stream": True}
    busy = one.start().stream("/completion", body, headers={"Authorization": "Bearer " + KEY})
    next(busy.events())
    timer = threading.Timer(2.5, busy.connection.sock.shutdown, [socket.SHUT_RDWR])
    timer.start()
    start = time.monotonic()
    result = call()
    timer.join()
    busy.close()
    true(time.monotonic() - start > 2, "the request waited")
    return result


def equal(a, b, what=""):
    if a != b:
        raise AssertionError(f"{what} {a!r} is not {b!r}".strip())


def true(value, what):
    if not value:
        raise AssertionError(what)


def parsed(text):
    """What JSON in a text says."""
    return json.loads(text)


def until(true_now, what):
    start = time.monotonic()
    while not true_now():
        if time.monotonic() - start > server_rig.PATIENCE_S:
            raise AssertionError(what + " did not come about")
        time.sleep(0.05)


def raises(kind, call):
    """The error that a call ends with, which must be of this class."""
    try:
        call()
    except Exception as e:
        if not isinstance(e, kind):
            raise AssertionError(f"{type(e).__name__} ({e}) is not {kind.__name__}") from e
        return e
    raise AssertionError(f"no {kind.__name__} came")


def _run(checks):
    """(passed, skipped, failed) names; what went wrong goes to standard error."""
    passed, skipped, failed = [], [], []
    for name in [n for n in vars(type(checks)) if n.startswith("check_")]:
        what = name[len("check_"):].replace("_", " ")
        try:
            getattr(checks, name)()
            passed.append(what)
        except Skip as why:
            skipped.append(f"{what} ({why})")
        except BaseException:  # also those with which clients end programs
            failed.append(what)
            print(f"--- {what}", file=sys.stderr)
            traceback.print_exc()
    return passed, skipped, failed


def main(distribution, make):
    """Runs a client's checks; make imports the client and returns the object that has them."""
    server_rig.PITH = sys.argv[1]
    try:
        version = importlib.metadata.version(distribution)
        checks = make()
    except ImportError as why:
        print(f"RESULT\t{distribution}\t-\tskip\tnot installed: {why}")
        sys.exit(77)
    try:
        passed, skipped, failed = _run(checks)
    finally:
        for server in Model.running:
            server.__exit__()
    state = "fail" if failed else "pass" if passed else "skip"
    told = (", ".join(passed) + "".join("; skipped: " + s for s in skipped) +
            "".join("; FAILED: " + f for f in failed)).lstrip("; ")
    print(f"RESULT\t{distribution}\t{version}\t{state}\t{told}")
    sys.stdout.flush()
    os._exit({"pass": 0, "skip": 77, "fail": 1}[state])  # clients leave threads behind
