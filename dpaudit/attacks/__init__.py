"""Membership inference: arrays in, scores out. A higher score says "member"."""

if __name__ != "dpaudit.attacks":
    raise ImportError("import this package as dpaudit.attacks; the top-level link `attacks` is for reading only")

from ..trainers.private.canaries import GradientCanaries
from .calibration import calibrated_loss, population, reference
from .canaries import (
    Blank,
    Canary,
    CanarySet,
    ClipBKD,
    FarOut,
    InsertedText,
    Mislabelled,
    OutOfDistribution,
    RandomNoise,
    flip_coins,
    plant,
)
from .chance import holm
from .classifier import ThinClassWarning, learned
from .coins import CanaryCoins, read_canaries, write_canaries
from .controls import Baseline, NullRun, blind_baseline, null_run
from .evidence import NEEDS, Evidence
from .exposure import (
    ExposureFit,
    PoorFit,
    exposure_extrapolated,
    exposure_interpolated,
    fit_exposure,
    log_perplexity,
)
from .gradients import gradient_canary_score, gradient_norm, gradient_norms
from .metrics import FPRS, Measures, Roc, auc, measure, ppv, rate, roc, slices, threshold
from .ratios import rmia, rmia_leave_one_out, tune_offline_a
from .registry import ATTACKS, Attack
from .shadow import lira, lira_leave_one_out
from .signals import (
    SIGNALS,
    confidence,
    correctness,
    cross_entropy,
    entropy,
    log_probabilities,
    logit_margin,
    loss_threshold,
    modified_entropy,
)
from .texts import Secrets, decode, encode
from .traces import loss_traces, traces_of

__all__ = [
    "ATTACKS",
    "FPRS",
    "NEEDS",
    "SIGNALS",
    "Attack",
    "Baseline",
    "Blank",
    "Canary",
    "CanaryCoins",
    "CanarySet",
    "ClipBKD",
    "Evidence",
    "ExposureFit",
    "FarOut",
    "GradientCanaries",
    "InsertedText",
    "Measures",
    "Mislabelled",
    "NullRun",
    "OutOfDistribution",
    "PoorFit",
    "RandomNoise",
    "Roc",
    "Secrets",
    "ThinClassWarning",
    "auc",
    "blind_baseline",
    "calibrated_loss",
    "confidence",
    "correctness",
    "cross_entropy",
    "decode",
    "encode",
    "entropy",
    "exposure_extrapolated",
    "exposure_interpolated",
    "fit_exposure",
    "flip_coins",
    "gradient_canary_score",
    "gradient_norm",
    "gradient_norms",
    "holm",
    "learned",
    "lira",
    "lira_leave_one_out",
    "log_perplexity",
    "log_probabilities",
    "logit_margin",
    "loss_threshold",
    "loss_traces",
    "measure",
    "modified_entropy",
    "null_run",
    "plant",
    "population",
    "ppv",
    "rate",
    "read_canaries",
    "reference",
    "rmia",
    "rmia_leave_one_out",
    "roc",
    "slices",
    "threshold",
    "traces_of",
    "tune_offline_a",
    "write_canaries",
]
