"""One round of the paper's cell: who sends, on how much bandwidth, and how far that is from the best possible."""

from flare import CELLS, Cell, round_problem, solve, stream

cell = Cell(CELLS["paper"], seed=3)
problem = round_problem(cell.draw(0))

best = solve(problem, "exact")
print(f"exact:  {best.num_selected} devices, objective {best.objective:.4f}, {best.status.value}")
for policy in ("greedy", "ps"):
    schedule = solve(problem, policy, rng=stream(3, "policy", 0))
    above = schedule.objective / best.lower_bound - 1
    print(f"{policy}: {schedule.num_selected} devices, {above:.0%} above the optimum, {schedule.latency_s:.3f} s")
