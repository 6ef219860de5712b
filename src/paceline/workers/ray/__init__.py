"""A run as actors of Ray: `ray_actors.py` is Ray's side, `launch.py` starts the actors and ends them with the run.

Nothing is imported here, and nothing outside needs Ray.
"""
