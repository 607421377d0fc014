"""Asks OpenVINO GenAI how fast it is, for engines.py: ask_openvino.py MODEL THREADS TEST N N_GEN

TEST is prompt (N tokens to the first one that is generated) or generate (N_GEN tokens behind N).
Prints one line of JSON. Needs openvino-genai and numpy.
"""
import json
import sys

import numpy
import openvino
import openvino_genai


def ask(pipeline, n_prompt, n_generate):
    ids = numpy.random.default_rng(1).integers(1000, 30000, size=(1, n_prompt), dtype=numpy.int64)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = n_generate
    config.ignore_eos, config.do_sample = True, False
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids),
                                            openvino.Tensor(numpy.ones_like(ids)))
    return pipeline.generate(inputs, config).perf_metrics


def main():
    model, threads, test, n, n_gen = sys.argv[1:6]
    n, n_gen = int(n), int(n_gen)
    pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=int(threads))
    ask(pipeline, 64, 2)
    if test == "prompt":
        speed = n / ask(pipeline, n, 1).get_ttft().mean * 1e3
    else:
        speed = 1e3 / ask(pipeline, max(n, 1), n_gen).get_tpot().mean
    print(json.dumps({"version": openvino_genai.__version__, "tokens_per_s": speed}))


main()
