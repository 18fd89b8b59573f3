"""Lower bounds on ε from observations. Each says which mechanisms and designs it holds for."""

from .betting import sequential
from .choices import Bonferroni, Fixed, Ranks, Split
from .corner import claimed_family, gaussian
from .credible import jeffreys, joint_beta
from .families import GaussianFamily, LaplaceFamily
from .lifted import lidp
from .ranks import order_statistics
from .recursion import one_run_fdp
from .searching import either_direction
from .steinke import one_run
from .two_worlds import clopper_pearson
from .weighted import weighted_order_statistics

__all__ = [
    "Bonferroni",
    "Fixed",
    "GaussianFamily",
    "LaplaceFamily",
    "Ranks",
    "Split",
    "claimed_family",
    "clopper_pearson",
    "either_direction",
    "gaussian",
    "jeffreys",
    "joint_beta",
    "lidp",
    "one_run",
    "one_run_fdp",
    "order_statistics",
    "sequential",
    "weighted_order_statistics",
]
