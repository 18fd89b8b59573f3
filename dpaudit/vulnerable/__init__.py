"""The unusual student in one's own data: which records training gives away most, and how much of that DP-SGD hides.

Importing this package imports no torch; :func:`examine` does.
"""

from __future__ import annotations

from .experiment import examine
from .outcome import Exposure

__all__ = ["Exposure", "examine"]
