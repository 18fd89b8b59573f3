"""The privacy-utility frontier: accuracy against ε over a grid of noise and clip norms, and what choosing on it costs.

Importing this package imports no torch; :func:`explore` does.
"""

from .experiment import explore
from .facts import document
from .outcome import Frontier
from .text import render_text

__all__ = ["Frontier", "document", "explore", "render_text"]
