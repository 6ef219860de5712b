"""Models that read images: how an image becomes tokens, features and positions.

limits.py        how large an image is as each family reads it
families.py      one description per family of models, and the table of them
placeholders.py  text that stands for an image in a prompt; image processors and configurations, without weights
tower.py         features of images, computed once where they are frozen, and their places among tokens
probe.py         comparison of a model's passes with images before training
"""
