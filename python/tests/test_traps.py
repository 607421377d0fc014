"""What goes wrong elsewhere: signals, forks, callbacks that fail or call back, views of what is
closed, other libraries and other processes beside it."""
import asyncio
import copy
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import pithkv

COMMAND = os.environ.get("PITH_TEST_COMMAND", "")
RULES = dict(budget=48, slack=16, sinks=2, window=8)
READS = dict(budget=64, chunk=32, gate=1, tail=0, dense_layers=0, phase="both")


# ---- import ----

def test_the_package_imports_little_beside_numpy():
    code = ("import numpy, _cffi_backend, dataclasses, sys; before = set(sys.modules); import pithkv; "
            "print(*(name for name in set(sys.modules) - before if not name.startswith('pithkv')))")
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert not {"asyncio", "concurrent.futures", "json", "logging", "multiprocessing"} & set(out.split())


# ---- errors ----

def test_each_status_has_a_class(nano):
    builtin = {"INVALID": ValueError, "NOMEM": MemoryError, "IO": OSError, "FORMAT": ValueError,
               "UNSUPPORTED": NotImplementedError, "NOT_FOUND": LookupError, "KV_FULL": MemoryError,
               "CONTEXT": ValueError, "RANGE": IndexError, "BUSY": RuntimeError, "CANCELLED": Exception,
               "INTERNAL": Exception}
    from pithkv import native
    for number in range(-12, 0):
        name = native.ffi.string(native.lib.pith_status_name(number)).decode()
        error = native.error_of(number, "a sentence")
        assert error.status == name and str(error) == "a sentence"
        assert isinstance(error, pithkv.PithError) and isinstance(error, builtin.pop(name))
    assert not builtin
    with pytest.raises(pithkv.PithUnsupported):
        pithkv.Engine(pithkv.Model(nano.path, vocab_only=True))
    with pytest.raises(pithkv.PithNotFound):
        pithkv.calibrate(nano, [5] * 40).shares(0.5)


def test_numbers_of_numpy_are_numbers(model, ids):
    assert pithkv.Keep("snapkv", budget=np.float32(0.25)).text == "snapkv:budget=25%"
    shares = [pithkv.Engine(model, kv=kind(0.25), n_ctx=1024).plan["bytes"] for kind in (float, np.float32)]
    assert shares[0] == shares[1]
    keep = pithkv.Keep("triattention", budget=np.int64(64), pin_prompt=np.bool_(True))
    assert keep.text == "triattention:budget=64,pin-prompt=on"
    seq = pithkv.Engine(model, kv_tokens=np.int64(1024)).sequence()
    text = seq.generate(ids, np.int32(3), bias={ids[3]: np.float32(1)}, seed=np.uint64(3)).text()
    assert text and not model.is_end(ids[0])
    seq.truncate(np.int64(7))
    assert len(seq) == 7 and len(seq.lane(np.int32(0), np.int32(0)).positions) == 7


def test_what_is_no_budget_or_policy_is_told_by_its_name(model):
    for kv in ("x%", "%", "nan%", "xMiB", "infGiB", "\u00b2"):
        with pytest.raises(pithkv.PithInvalid, match="kv: .*: a share such as 25%"):
            pithkv.Engine(model, kv=kv, n_ctx=1024)
    with pytest.raises(TypeError, match="keep: a function is no option"):
        pithkv.Engine(model, keep=lambda c: c.positions)


# ---- closing ----

def test_a_view_outlives_the_closing_of_its_sequence(engine, ids):
    seq = engine.sequence()
    seq.eval(ids)
    view, again, copy = seq.logits, seq.logits, seq.logits.copy()
    seq.close()
    seq.close()
    assert engine.memory["used_bytes"] == 0
    others = [np.ones(len(copy), np.float32) for _ in range(64)]  # would lie where the row was freed
    assert np.array_equal(view, copy) and np.array_equal(again, copy) and len(others) == 64
    del view
    gc.collect()
    assert engine.memory["n_seq"] == 1 and np.array_equal(again, copy)
    del again
    gc.collect()
    assert engine.memory["n_seq"] == 0


def test_a_sequence_is_copied_by_fork_alone(engine, ids):
    """Two objects of one pointer would free it twice."""
    with pytest.raises(TypeError, match="fork"):
        copy.copy(engine.sequence())


def test_rows_outlive_the_engine(model, ids):
    engine, kept = pithkv.Engine(model, kv_tokens=2048, device="cpu"), {}
    seq = engine.sequence()
    seq.eval(ids[:9], logits=kept.__setitem__)
    want = engine.sequence().eval(ids[:9], logits="all")
    engine.sequence().eval(ids[9:40], logits="all")
    assert all((kept[i] == want[i]).all() for i in range(9))


def test_zero_bytes_are_refused(model, engine, ids, tmp_path):
    """C would read a text up to there: the wrong file, or a stop that is empty."""
    seq = engine.sequence()
    for call in (lambda: seq.save(tmp_path / "a\0b"), lambda: engine.load("a\0b"),
                 lambda: pithkv.Model(model.path + "\0x"), lambda: seq.generate(ids, 1, stop=["\0x"]),
                 lambda: pithkv.Keep("snapkv\0x"), lambda: pithkv.Engine(model, keep="snapkv\0x"),
                 lambda: model.chat("a", template="chatml\0x"),
                 lambda: pithkv.eval.run("facts\0x", model)):
        with pytest.raises(pithkv.PithInvalid, match="has a zero byte"):
            call()
    assert not list(tmp_path.iterdir())
    with pytest.raises(TypeError, match="stop: 1 is no text"):
        seq.generate(ids, 1, stop=[1])
    with pytest.raises(TypeError, match="grammar: 'a' is no Grammar"):
        seq.generate(ids, 1, grammar="a")


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)])
def test_closing_in_any_order(engine, ids, order):
    a = engine.sequence()
    a.eval(ids[:20])
    b = a.fork()
    c = b.fork()
    generation = c.generate(ids[:30], 9, ignore_end=True)
    generation.next_token()
    things = [a, b, c, generation]
    for i in order:
        things[i].close()
    for seq in (a, b, c):
        with pytest.raises(pithkv.PithInvalid, match="closed"):
            seq.eval([1])
    assert generation.next_token() is None and engine.memory["used_bytes"] == 0


def test_a_close_waits_for_other_threads(engine, ids):
    """Threads that evaluate a sequence while another closes it end or are told so."""
    for _ in range(20):
        seq, told = engine.sequence(), []

        def work():
            try:
                while True:
                    seq.eval(ids[:4])
                    seq.kept()
            except pithkv.PithInvalid as error:
                told.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        seq.close()
        for thread in threads:
            thread.join()
        assert told == ["the sequence is closed"] * 2
    assert engine.memory["n_seq"] == 0


def test_a_thousand_engines_leave_no_memory(nano):
    def resident():
        return int(next(x.split()[1] for x in open("/proc/self/status") if x.startswith("VmRSS")))

    def turn():
        with pithkv.Engine(nano, kv_tokens=64, n_thread=1).sequence() as seq:
            seq.eval([1, 2, 3])

    for _ in range(20):
        turn()
    before = resident()
    for _ in range(1000):
        turn()
    assert resident() < before + 4096  # KiB


# ---- signals ----

def work_with(model, kind):
    """A call that takes longer than the test waits."""
    ids = np.resize(model.tokenize("The dog went to the river. "), 1500)
    keep = pithkv.Keep(lambda lane: lane.positions, budget=0.5, slack=32) if kind == "policy" else None
    engine = pithkv.Engine(model, kv_tokens=8192, keep=keep, device="cpu")

    def forever(call):
        while True:
            call()

    async def tokens():
        while True:
            async for _ in engine.sequence().agenerate(ids[:9], 200, ignore_end=True):
                pass

    calls = {
        "eval": lambda: engine.sequence().eval(ids),
        "policy": lambda: engine.sequence().eval(ids),
        "rows": lambda: engine.sequence().eval(ids, logits="all"),
        "targets": lambda: engine.sequence().eval(ids, targets=ids),
        "generate": lambda: engine.sequence().generate(ids[:9], 200, ignore_end=True).text(),
        "asyncio": lambda: asyncio.run(tokens()),
        "scheduler": lambda: pithkv.Scheduler(engine).generate(["One", "Two"], 200, ignore_end=True),
        "calibrate": lambda: pithkv.calibrate(model, ids),
        "measure": lambda: pithkv.eval.facts(model, lengths=512, texts=4, style="pith"),
        "load": lambda: pithkv.Model(model.path),
    }
    return engine, lambda: forever(calls[kind])


@pytest.mark.parametrize("kind", ["eval", "policy", "rows", "targets", "generate", "asyncio", "scheduler",
                                  "calibrate", "measure", "load"])
def test_control_c_ends_a_call(model, kind):
    engine, call = work_with(model, kind)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    timer.join()
    gc.collect()
    seq = engine.sequence()  # all goes on
    seq.eval([5, 6, 7])
    assert len(seq) == 3


def test_signals_between_any_two_steps_leave_the_engine_free(engine):
    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    for i in range(3000):
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + i % 30))
            while True:
                engine.memory
        except KeyboardInterrupt:
            pass
        assert not engine._lock.mine()


def test_cancelling_ends_the_reading_of_a_prompt(model, ids):
    engine = pithkv.Engine(model, kv_tokens=2048, device="cpu", chunk=32)
    seq, cancelled = engine.sequence(), threading.Event()

    async def run():
        loop, seen = asyncio.get_running_loop(), []

        def progress(fraction):
            seen.append(fraction)
            loop.call_soon_threadsafe(task.cancel)
            assert cancelled.wait(10)

        task = asyncio.ensure_future(seq.agenerate(ids[:320], 9, progress=progress).__anext__())
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        await loop.run_in_executor(engine._executor(), lambda: None)  # behind the prompt
        return seen

    assert len(asyncio.run(run())) == 1 and len(seq) == 0


# ---- callbacks ----

def hooked(model, kind, called):
    """An engine, a sequence of it, and a call in which Python's function `called` runs."""
    def scored(entries):
        called()
        return np.zeros(len(entries))

    options = {"score": dict(keep=pithkv.Keep(scored, **RULES)), "mark": dict(keep=pithkv.Keep(mark=scored, **RULES)),
               "read": dict(read=pithkv.Read(scored, **READS))}.get(kind, {})
    engine = pithkv.Engine(model, kv_tokens=2048, device="cpu", **options)
    seq, ids = engine.sequence(), np.resize(model.tokenize("The dog went to the river. "), 200)
    if kind == "tap":
        engine.tap(lambda rows: called())
    if kind == "token":
        scheduler = pithkv.Scheduler(engine)
        scheduler.submit("The dog", 4, on_token=lambda token, text: called())
        return engine, seq, scheduler.run
    if kind == "rows":
        return engine, seq, lambda: seq.eval(ids, logits=lambda pos, row: called())
    if kind == "prompt":
        return engine, seq, lambda: seq.generate(ids, 2, progress=lambda fraction: called())
    return engine, seq, lambda: seq.eval(ids, progress=(lambda fraction: called()) if kind == "progress" else None)


HOOKS = ["rows", "progress", "prompt", "tap", "score", "mark", "read", "token"]


@pytest.mark.parametrize("kind", HOOKS)
def test_what_a_callback_raises_comes_out_of_the_call(model, kind):
    fails = [True]

    def called():
        if fails[0]:
            raise LookupError("mine")

    engine, seq, call = hooked(model, kind, called)
    with pytest.raises(LookupError, match="mine"):
        call()
    assert kind in ("score", "token") or len(seq) == 0  # rounds leave the tokens of their passes
    fails[0] = False
    seq.truncate(0)
    call()


@pytest.mark.parametrize("call", [
    lambda model, fail: pithkv.Model(model.path, progress=fail),
    lambda model, fail: pithkv.calibrate(model, [5] * 99, progress=fail),
    lambda model, fail: pithkv.calibrate_importance(model, [[5] * 99], progress=fail),
    lambda model, fail: pithkv.calibrate_projection(model, [5] * 99, progress=fail),
    lambda model, fail: pithkv.eval.facts(model, lengths=256, style="pith", progress=fail),
])
def test_what_a_progress_raises_comes_out_of_the_call(nano, call):
    def fail(*_):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        call(nano, fail)


@pytest.mark.parametrize("kind", HOOKS)
def test_callbacks_that_call_the_engine_are_told_busy(model, kind, tmp_path):
    told = {}

    def called():
        if told:
            return
        deeds = dict(eval=lambda: seq.eval([1]), batch=lambda: engine.eval([(seq, [1])]),
                     truncate=lambda: seq.truncate(0), fork=seq.fork, sequence=engine.sequence,
                     save=lambda: seq.save(tmp_path / "a"), load=lambda: engine.load(tmp_path / "a"),
                     lane=lambda: seq.lane(0, 0), raw=lambda: seq.raw(0, 0), kept=seq.kept,
                     memory=lambda: engine.memory, stats=lambda: seq.keep_stats, tap=lambda: engine.tap(None),
                     generate=lambda: seq.generate([1], 2), next=generation.next_token,
                     mark=lambda: seq.mark_prompt(1), round=seq.keep_round,
                     scheduler=lambda: pithkv.Scheduler(engine))
        for name, deed in deeds.items():
            try:
                deed()
                told[name] = "done"
            except pithkv.PithBusy:
                told[name] = "busy"

    engine, seq, call = hooked(model, kind, called)
    told["not yet"] = ""
    generation = engine.sequence().generate([1, 2, 3], 4)
    told.clear()
    call()
    assert len(told) == 18 and set(told.values()) == {"busy"}


def test_a_generator_may_be_left_at_each_piece(engine, ids):
    """With drafts, too: tokens that were drafted ahead are not in the sequence."""
    whole = list(engine.sequence().generate(ids, 6, seed=3, ignore_end=True).tokens())
    for draft in (False, True):
        for n in range(len(whole) + 1):
            seq = engine.sequence()
            generation = seq.generate(ids, 6, seed=3, ignore_end=True, draft=draft)
            tokens = generation.tokens()
            for want in whole[:n]:
                assert next(tokens) == want
            tokens.close()
            del generation
            taken = [t.id for t in whole[:n] if t.id >= 0]
            assert list(seq.tokens[len(ids):]) == taken[:-1]
            seq.eval(taken[-1:] or [5])
            alone = engine.sequence()
            alone.eval([*ids, *(taken or [5])])
            assert np.array_equal(seq.logits, alone.logits)


# ---- other processes ----

def busy(engine):
    """Whether another thread is in the engine."""
    free = engine._lock.acquire(blocking=False)
    if free:
        engine._lock.release()
    return not free


def test_a_fork_amid_a_call_is_told(model, engine, ids):
    """The child cannot go on with that engine, and makes one of its own."""
    seq, stop = engine.sequence(), threading.Event()

    def work():
        while not stop.is_set():
            seq.eval(ids)
            seq.truncate(0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while not thread.is_alive() or not busy(engine):
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with pytest.raises(pithkv.PithBusy, match="spawn"):
                    engine.sequence()
                own = pithkv.Engine(model, kv_tokens=512).sequence()
                own.eval(ids)
                status = 0 if len(own) == len(ids) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_a_fork_in_a_callback(engine, ids):
    """The child is in the call, too, and ends it."""
    parent, seq = os.getpid(), engine.sequence()
    children = []

    def fork(pos, row):
        if pos == 3:
            children.append(os.fork())

    seq.eval(ids[:8], logits=fork)
    if os.getpid() != parent:
        seq.eval([5])
        os._exit(0 if len(seq) == 9 else 1)
    assert os.waitpid(children[0], 0)[1] == 0 and len(seq) == 8


def answer(model):
    return pithkv.Engine(model, kv_tokens=256).sequence().generate("The dog", 6, temperature=0.0).text()


def test_processes_that_are_spawned(model):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(answer, [model] * 4) == [answer(model)] * 4


def test_two_models_side_by_side(model, nano):
    """Their passes take turns in one thread, and run together in two."""
    alone = [answer(one) for one in (model, nano)]
    pulls = [pithkv.Engine(one, kv_tokens=256).sequence().generate("The dog", 6, temperature=0.0)
             for one in (model, nano)]
    texts = ["", ""]
    for _ in range(8):
        for i, pull in enumerate(pulls):
            token = pull.next_token()
            texts[i] += token.text if token else ""
    assert texts == alone
    found = {}
    threads = [threading.Thread(target=lambda i=i: found.__setitem__(i, answer((model, nano)[i % 2])))
               for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(4)] == alone * 2


def test_beside_torch(model):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    want, matrix = answer(model), torch.ones(256, 256)
    for _ in range(3):
        assert float((matrix @ matrix)[0, 0]) == 256.0 and answer(model) == want
    seq = pithkv.Engine(model, kv_tokens=256).sequence()
    seq.eval([5, 6])
    assert torch.equal(torch.from_numpy(seq.logits.copy()).argmax(), torch.tensor(int(seq.logits.argmax())))


@pytest.mark.skipif(not os.access(COMMAND, os.X_OK), reason="PITH_TEST_COMMAND names no command")
def test_files_go_to_the_command_and_back(model, tmp_path):
    def chat(lines):
        return subprocess.run([COMMAND, "chat", "-m", model.path, "-n", "8", "--temp", "0", "-c", "512",
                               "--chat-template", "chatml"], input=lines, check=True, capture_output=True,
                              text=True, cwd=tmp_path)

    chat("The dog\n/save talk\n")
    kv = next(path for path in tmp_path.iterdir() if path.name != "talk")
    engine = pithkv.Engine(model, kv_tokens=512)
    seq = engine.load(kv)
    again = engine.sequence()
    again.eval(seq.tokens)
    assert len(seq) > 8 and np.array_equal(seq.lane(1, 0).keys, again.lane(1, 0).keys)
    seq.eval([5])
    again.eval([5])
    assert np.array_equal(seq.logits, again.logits)
    seq.save(kv)
    assert len(json.loads((tmp_path / "talk").read_text())) == 2
    said = chat("/load talk\n")
    assert f"the KV of {len(seq)} tokens" in said.stdout + said.stderr
