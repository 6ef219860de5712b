"""The reward functions that come with Paceline; `paceline.rewards.registry` has their names."""
