"""The part `real` of scripts/bench.sh: real models, whole prompts and generation at depths, Pith
and peers by turns on the same files. Standard library only."""
import os
import statistics

MODELS = {
    "SmolLM2 Q4_1": "smollm2-135m-instruct-q4_1.gguf",
    "Gemma 3 270M Q4_K_M": "gemma-3-270m-q4_k_m.gguf",
    "Coder-0.5B Q4_K_M": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "Coder-0.5B Q8_0": "coder-0.5b-q8_0.gguf",  # pith quantize CODER-0.5B coder-0.5b-q8_0.gguf Q8_0
    "Coder-1.5B Q4_K_M": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}
LONG = 2048  # tokens; with more a thing is measured in the first round alone, by one setting


def work(args):
    """(test, tokens) of each thing that is measured."""
    return [("prompt", n) for n in args.prompts] + [("generate", n) for n in args.depths]


def median_of(values):
    values = [value for value in values if value]
    return statistics.median(values) if values else None


def best(found, place, engine):
    """The setting with the highest median, and that median; None where nothing was measured."""
    medians = {setting: median_of(values)
               for (at, name, setting), values in found.items() if (at, name) == (place, engine)}
    medians = {setting: value for setting, value in medians.items() if value}
    return max(medians.items(), key=lambda item: item[1]) if medians else (None, None)


def settings_of(engine, found, place, number):
    """All in the first round, then the best. Long texts take the setting that was best for short
    ones."""
    model, threads, test, n = place
    at = place if n < LONG else (model, threads, test, 512 if test == "prompt" else 0)
    setting = best(found, at, engine.name)[0]
    if setting is None or (number == 0 and at == place):
        return engine.settings
    return [pair for pair in engine.settings if pair[0] == setting]


def measure(args, log, engines, models):
    """{(place, engine, setting): [tokens/s]} and {place: bound}; a place is (model, threads, test,
    tokens)."""
    found, bounds = {}, {}
    places = [(model, threads, *thing) for model in models for threads in args.threads
              for thing in work(args)]
    for number in range(args.rounds):
        for place in places:
            model, threads, test, n = place
            if number > 0 and n >= LONG:
                continue
            for engine in engines:
                for setting, options in settings_of(engine, found, place, number):
                    value = engine.speed(models[model], threads, test, n, options)
                    found.setdefault((place, engine.name, setting), []).append(value)
                    if value:
                        log.add(engine.name, engine.version(), setting=setting, model=model,
                                threads=threads, test=test, depth=n, round=number, value=value)
                if engine.name == "pith":
                    bounds.setdefault(place, []).append(engine.answer["rows"][0]["bound"])
    return found, {place: statistics.median(values) for place, values in bounds.items()}


def print_real(args, log, engines):
    models = {name: os.path.join(args.real, file) for name, file in MODELS.items()
              if os.path.exists(os.path.join(args.real, file))
              and (not args.only or any(word in name for word in args.only))}
    if not models:
        raise SystemExit(f"{args.real}: none of these files is there: {', '.join(MODELS.values())}")
    found, bounds = measure(args, log, engines, models)
    peers = [engine.name for engine in engines if engine.name != "pith"]
    head = ["tokens/s", "threads", "pith", *peers, "pith / best peer", "bound", "pith / bound"]
    print("\n| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for place, bound in bounds.items():
        model, threads, test, n = place
        own = best(found, place, "pith")[1]
        values = [best(found, place, peer)[1] for peer in peers]
        top = max((value for value in values if value), default=None)
        what = f"prompt of {n:,}" if test == "prompt" else f"generation behind {n:,}"
        cells = [f"{model}, {what}", str(threads), f"{own:.4g}",
                 *(f"{value:.4g}" if value else "-" for value in values),
                 f"{own / top:.2f}" if top else "-", f"{bound:.4g}", f"{own / bound:.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
