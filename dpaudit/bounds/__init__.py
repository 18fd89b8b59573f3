"""Lower bounds on ε from observations. Each says which mechanisms and designs it holds for."""

from .choices import Bonferroni, Fixed, Split
from .recursion import one_run_fdp
from .steinke import one_run
from .two_worlds import clopper_pearson

__all__ = ["Bonferroni", "Fixed", "Split", "clopper_pearson", "one_run", "one_run_fdp"]
