"""A model that the repository ships, and engines over it."""
import os
import pathlib

import pytest

import pithkv

HERE = pathlib.Path(__file__).resolve()
MODEL = os.environ.get("PITH_TEST_MODEL", str(HERE.parents[2] / "models" / "pith-mini.gguf"))
if not os.path.exists(MODEL):  # in a source distribution
    MODEL = str(HERE.parents[1] / "models" / "pith-nano.gguf")
TEXT = "Once upon a time there was a small dog who lived near the river. " * 12


@pytest.fixture(scope="session")
def model():
    return pithkv.Model(MODEL)


@pytest.fixture(scope="session")
def ids(model):
    return model.tokenize(TEXT)


@pytest.fixture
def engine(model):
    return pithkv.Engine(model, kv_tokens=2048, device="cpu")
