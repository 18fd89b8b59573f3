"""The unusual student: what a model gives away about one person in a small class, what DP-SGD hides, what it costs.

Importing this package imports no torch; :func:`run_demo` does.
"""

from .experiment import DEFAULT_MODELS, run_demo
from .outcome import DemoResult
from .text import render_text
from .writing import write

__all__ = ["DEFAULT_MODELS", "DemoResult", "render_text", "run_demo", "write"]
