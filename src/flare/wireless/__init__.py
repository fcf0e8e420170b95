"""What the radio and the processors of a cell allow."""
