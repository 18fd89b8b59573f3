"""Reports: facts first, drawing later. Nothing here identifies a record or its membership."""

from .facts import document
from .writing import write_release

__all__ = ["document", "write_release"]
