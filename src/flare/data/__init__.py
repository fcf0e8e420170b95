"""Data sets, embedded, fetched or the user's own, and their division among the devices."""

from flare.data.dataset import Dataset
from flare.data.own import from_arrays, from_torch
from flare.data.partition import label_counts, partition
from flare.data.sources import SOURCES, load_dataset, load_divided

__all__ = [
    "SOURCES",
    "Dataset",
    "from_arrays",
    "from_torch",
    "label_counts",
    "load_dataset",
    "load_divided",
    "partition",
]
