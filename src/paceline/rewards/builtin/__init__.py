"""The reward functions that come with Paceline; `BUILT_IN` of `paceline.rewards.resolving` registers them by name."""
