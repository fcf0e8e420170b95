"""The colours of every figure: Okabe and Ito's palette.

Blue is the radio in every panel, orange is computing; in grey they are dark and light.
"""

BLUE, EDGE, PALE, ORANGE = "#0072B2", "#00324F", "#BFDCEC", "#E69F00"
INK, GREY, FAINT, PAPER = "#1A1A1A", "#6B6B6B", "#D4D4D4", "#F4F4F4"
