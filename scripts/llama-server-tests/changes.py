"""What belongs to other models in llama-server's tests, and what is not ours.

Run with a folder of copied tests it changes them there; with --files it prints those that are run.
A change whose old text is gone is an error, so a newer llama.cpp shows what moved.
"""
import pathlib
import sys

FILES = """basic chat_completion compat_anthropic compat_oai_responses completion ctx_shift
ignore_eos infill kv_keep_only_active metrics security slot_save template tokenize tool_call"""

# Texts of tinyllamas: see text_of_model in relations.py.
TEXTS = {
    "(going|bed)+", "(princesses|everyone|kids|Anna|forest)+", "But she couldn't",
    "(Suddenly)+|\\{ \" Sarax.", "^ blue", "(Aside|she|felter|alonger)+", "Whillicter",
    "(Suddenly)+", "(Whiskers|Flana)+", "(Jack|said)+", "(little|girl)+",
    "(Ann|small|shiny|Daddy|Jimmy)+", "(Dad|excited|park|Jimmy)+",
}

CHANGES = {}
NOT_OURS = {}  # start of a test's name: why it is not run
ABSENT = {}


def main():
    if sys.argv[1] == "--files":
        print(" ".join(f"unit/test_{name}.py" for name in FILES.split()))
        return
    folder = pathlib.Path(sys.argv[1]) / "unit"
    for name, changes in CHANGES.items():
        path = folder / f"test_{name}.py"
        text = path.read_text(encoding="utf-8")
        for old, new in changes:
            if old not in text:
                sys.exit(f"changes.py: {path.name}: there is no {old!r}")
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
