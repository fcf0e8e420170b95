"""One round of the paper's cell: who sends, on how much bandwidth, and how far that is from the best possible."""

from flare import solve, stream
from flare.scheduling.cells import round_problem
from flare.wireless.cell import CELLS, Cell

config = CELLS["paper"]
cell = Cell(config, seed=3)
problem = round_problem(config, gamma=10.0, drawn=cell.draw(0))

best = solve(problem, "exact")
print(f"exact:  {best.num_selected} devices, objective {best.objective:.4f}, {best.status.value}")
for policy in ("greedy", "ps"):
    schedule = solve(problem, policy, rng=stream(3, "policy", 0))
    above = schedule.objective / best.lower_bound - 1
    print(f"{policy}: {schedule.num_selected} devices, {above:.0%} above the optimum, {schedule.latency_s:.3f} s")
