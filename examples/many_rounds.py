"""A hundred rounds of a fading cell: how often each device is served, by a policy with memory and by the optimum."""

from dataclasses import replace

import numpy as np

from flare import CELLS, Cell, round_problem, solve, stream

config = replace(CELLS["paper"], deadline_s=1.0, fading="rayleigh")
cell = Cell(config, seed=1)

for policy in ("exact", "round-robin", "proportional-fair"):
    served = np.zeros(config.num_devices)
    memory = None
    for r in range(100):
        problem = round_problem(cell.draw(r))
        schedule = solve(problem, policy, rng=stream(1, "policy", r), memory=memory)
        memory = schedule.memory
        served[schedule.selected] += 1
    print(f"{policy:18} {served.mean():5.1f} rounds a device on average, from {served.min():.0f} to {served.max():.0f}")
