"""A testbed on one machine: real Flower nodes behind links that are shaped to what each schedule grants.

Every device is a SuperNode in a network namespace of its own, with a virtual link to the namespace of the SuperLink.
`flare testbed` runs policies on it and compares, device by device and round by round, what the model of the radio
predicts with what was measured: docs/testbed.md.
"""
