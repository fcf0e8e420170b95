"""A researcher's Python: runs in a line, as tables and as curves.

run = flare.simulate({"run.rounds": 20}, policy="greedy")
run.frame(), run.devices(), run.plot("accuracy")
runs = flare.compare(["flare:greedy", "fedavg:greedy"], seeds=3)
runs.plot("accuracy", x="time"), runs.summary()
"""

from flare.research.loading import load
from flare.research.pilots import Pilots, luo_pilots
from flare.research.run import Run
from flare.research.running import compare, simulate
from flare.research.runs import Runs

__all__ = ["Pilots", "Run", "Runs", "compare", "load", "luo_pilots", "simulate"]
