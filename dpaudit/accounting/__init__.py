"""From mechanism settings to the privacy curve that they promise."""

from .claims import Claim
from .curves import Curve, GaussianCurve, GridCurve, LaplaceCurve, PairCurve

__all__ = ["Claim", "Curve", "GaussianCurve", "GridCurve", "LaplaceCurve", "PairCurve"]
