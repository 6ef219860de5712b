"""Equality of answers as mathematics."""
