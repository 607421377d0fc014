"""lm-eval's command, with Pith among its models."""
from lm_eval.__main__ import cli_evaluate  # type: ignore[import-not-found,import-untyped,unused-ignore]

from . import PithLM  # noqa: F401  (it registers itself)

if __name__ == "__main__":
    cli_evaluate()
