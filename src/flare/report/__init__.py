"""Pictures and pages that people look at."""

FIGURE_FORMATS = (".png", ".svg", ".pdf")
"""What figures can be written as, by suffix."""
