"""True if an answer equals the gold answer, as mathematics."""
