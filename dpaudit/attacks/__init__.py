"""Membership inference: arrays in, scores out. A higher score says "member"."""

if __name__ != "dpaudit.attacks":
    raise ImportError("import this package as dpaudit.attacks; the top-level link `attacks` is for reading only")

from .canaries import Blank, Canary, CanarySet, FarOut, Mislabelled, RandomNoise, flip_coins, plant
from .metrics import Roc, auc, roc
from .shadow import lira, lira_leave_one_out
from .signals import SIGNALS, cross_entropy, logit_margin, loss_threshold

__all__ = [
    "SIGNALS",
    "Blank",
    "Canary",
    "CanarySet",
    "FarOut",
    "Mislabelled",
    "RandomNoise",
    "Roc",
    "auc",
    "cross_entropy",
    "flip_coins",
    "lira",
    "lira_leave_one_out",
    "logit_margin",
    "loss_threshold",
    "plant",
    "roc",
]
