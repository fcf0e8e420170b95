"""What happened, on disk: the run folder with its configuration, its rounds and its checkpoints."""

from flare.records.checkpoint import Snapshot
from flare.records.folder import RunFolder

__all__ = ["RunFolder", "Snapshot"]
