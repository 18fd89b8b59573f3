"""Products of float32 must be what they say: of factors rounded to fewer bits, a clipped gradient exceeds its limit."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InputError


def check_precision(device: torch.device) -> None:
    """Refuse to clip where torch was told to round the factors of float32 products, to TF32 (10 bits) or bfloat16 (7).

    Autocast is refused too.

    Raises:
        InputError: see ``torch.set_float32_matmul_precision``.
    """
    if torch.is_autocast_enabled(device.type):
        raise InputError("gradients must not be clipped under autocast: their sums would exceed the limit")
    kind = "cuda" if device.type == "cuda" else "mkldnn"
    matmul: Any = getattr(getattr(torch.backends, kind, None), "matmul", None)
    chosen = getattr(matmul, "fp32_precision", None)
    if chosen is None:  # torch before 2.9
        chosen = {"high": "tf32", "medium": "bf16"}.get(torch.get_float32_matmul_precision(), "none")
    if chosen in ("tf32", "bf16"):
        raise InputError(f"float32 products must not be rounded to {chosen} where gradients are clipped: "
                         'call torch.set_float32_matmul_precision("highest")')  # fmt: skip
