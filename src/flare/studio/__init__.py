"""The studio: the cell, runs and new ones in a browser on the user's own machine; and the scheduler as a service.

Only `flare studio` and `flare serve` import it: it needs the extra `studio`.
"""
