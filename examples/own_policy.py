"""A policy of your own: a function from the round to the devices that shall send.

Here: the devices that need the least bandwidth for each local step go first. Dividing the band,
checking the deadline and the objective come from the package; the new policy is called by name like the built-in ones.
"""

import numpy as np

import flare


@flare.policy("frugal")
def frugal(problem: flare.RoundProblem) -> np.ndarray:
    """The devices that need the least bandwidth for each local step go first."""
    cost = problem.needed_hz / problem.tau
    return flare.admit(problem, np.argsort(cost))


def main() -> None:
    draw = flare.stream(7, "example")
    tau = np.maximum(1, np.round(draw.exponential(3, size=40)))
    problem = flare.RoundProblem(
        tau=tau,
        compute_s=tau * 0.01,
        snr_hz=10 ** draw.uniform(9, 12, size=40),
        payload_bits=1e7,
        total_bandwidth_hz=10e6,
        deadline_s=0.5,
    )
    for name in ("frugal", "greedy", "exact"):
        schedule = flare.solve(problem, name)
        print(f"{name:8} {schedule.num_selected:3} devices, objective {schedule.objective:.4f}")


if __name__ == "__main__":
    main()
