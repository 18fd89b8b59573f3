"""Trainers: frozen settings that know how to train one model, and one engine that trains many at once.

Importing this package imports neither torch nor scikit-learn; the first training run does.
"""

from __future__ import annotations

if __name__ != "dpaudit.trainers":
    raise ImportError(f"import this package as dpaudit.trainers, not as {__name__}: the short name is only a link")

from .external import FunctionTrainer, resolve
from .images import Convolution, ConvolutionalNet
from .memory import choose_chunk
from .models import ModelStack
from .seeds import model_seeds
from .settings import DPSGD, SGD
from .training import train_many

__all__ = [
    "DPSGD",
    "SGD",
    "Convolution",
    "ConvolutionalNet",
    "FunctionTrainer",
    "ModelStack",
    "choose_chunk",
    "model_seeds",
    "resolve",
    "train_many",
]
