"""A model that the repository ships, engines over it, and a process for each test."""
import os
import pathlib
import pickle
import signal
import tempfile
import time

import pytest
from _pytest import runner

import pithkv

HERE = pathlib.Path(__file__).resolve()
MODEL = os.environ.get("PITH_TEST_MODEL", str(HERE.parents[2] / "models" / "pith-mini.gguf"))
NANO = str(HERE.parents[2] / "models" / "pith-nano.gguf")
if not os.path.exists(MODEL):  # in a source distribution
    MODEL = NANO = str(HERE.parents[1] / "models" / "pith-nano.gguf")
TEXT = "Once upon a time there was a small dog who lived near the river. " * 12
LIMIT_S = 400  # of a test


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Runs the test in a child, so that one that crashes, hangs or leaves threads ends alone. This
    process never makes an engine."""
    if item.config.getoption("usepdb"):
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports_of_child(item):
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def reports_of_child(item):
    hook = item.config.hook
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                reports = runner.runtestprotocol(item, log=False)
                pickle.dump([hook.pytest_report_to_serializable(config=item.config, report=r) for r in reports], file)
                file.flush()
                status = 0
            finally:
                os._exit(status)
        status, end = None, time.monotonic() + LIMIT_S
        while status is None:
            pid, found = os.waitpid(child, os.WNOHANG)
            if pid == child:
                status = found
            elif time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1]
            else:
                time.sleep(0.005)
        file.seek(0)
        text = file.read()
    if status == 0 and text:
        return [hook.pytest_report_from_serializable(config=item.config, data=d) for d in pickle.loads(text)]
    call = runner.CallInfo.from_call(lambda: pytest.fail(f"its process ended with status {status:#x}", False), "call")
    return [hook.pytest_runtest_makereport(item=item, call=call)]


@pytest.fixture(scope="session")
def model():
    return pithkv.Model(MODEL)


@pytest.fixture(scope="session")
def nano():
    return pithkv.Model(NANO)


@pytest.fixture(scope="session")
def ids(model):
    return model.tokenize(TEXT)


@pytest.fixture
def engine(model):
    return pithkv.Engine(model, kv_tokens=2048, device="cpu")
