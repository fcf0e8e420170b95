"""Digits on a fleet: the parts that Flower runs."""
