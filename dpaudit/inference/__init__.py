"""Membership inference on arrays or on a model of one's own: every attack that the evidence allows, with its controls.

Importing this package imports neither torch nor scikit-learn.
"""

from .facts import document
from .outcome import AttackResult, Inference
from .run import infer
from .sources import Source, read_source
from .text import render_text
from .writing import write

__all__ = ["AttackResult", "Inference", "Source", "document", "infer", "read_source", "render_text", "write"]
