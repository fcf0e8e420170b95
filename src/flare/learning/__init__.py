"""What devices compute and what the base station makes of it: models, methods, engines."""
