"""The notebook of a policy of one's own runs, where nbclient and matplotlib are installed."""
import base64
import os
import pathlib
import re

import pytest

NOTEBOOK = pathlib.Path(__file__).resolve().parents[2] / "examples" / "policies.ipynb"


@pytest.mark.skipif(not NOTEBOOK.exists(), reason="the examples are not here")
def test_the_notebook_runs(model, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    for module in ("ipykernel", "matplotlib"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    monkeypatch.setenv("PITH_MODEL", os.path.abspath(model.path))
    monkeypatch.setenv("TEXTS", os.environ.get("TEXTS", "2"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    if os.environ.get("PITH_NOTEBOOK_OUT"):  # to look at
        nbformat.write(notebook, os.environ["PITH_NOTEBOOK_OUT"])
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    text = "".join(out["text"] for out in outputs if out.output_type == "stream")
    assert len(re.findall(r"finds +\d+%", text)) == 3
    assert len(re.findall(r"mine - \w+ +(?:found|answer_logprob) +[+-][\d.]+ \+- [\d.]+  \(\d+ texts\)", text)) == 4
    data = [out["data"] for out in outputs if "data" in out]
    held = next(float(re.search(r"([\d.]+)% of the entries", d["text/html"]).group(1)) for d in data if "text/html" in d)
    assert 20 < held < 60
    png = base64.b64decode(next(d["image/png"] for d in data if "image/png" in d))
    assert png.startswith(b"\x89PNG") and len(png) > 10000
