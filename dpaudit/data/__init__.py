"""Data sets as plain arrays: bundled ones and files of the user's. Importing this imports no training library."""

from __future__ import annotations

from .pool import Pool, unused_features
from .sources import load

__all__ = ["Pool", "load", "unused_features"]
