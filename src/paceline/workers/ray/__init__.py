"""A run as actors of Ray: producers sample and score, consumers train, one driver keeps the order.

schedule.py         what the producers do next and with which weights: asynchronous running as arithmetic
producer_thread.py  the thread that does the schedule's jobs
worker_group.py     the producers as one: shares out, answers in order, lost ones replaced
weights.py          weight sync: manifest, buckets, fingerprint
producing.py        a producer's process
consuming.py        a consumer's process
consumers.py        all consumers as one: they train together, and the loss of one ends them
backend.py          the backend as the loop sees it
simulation.py       the schedule on a simulated clock: when steps are done, and who waits
scaling.py          seconds of a step with other numbers of producers and consumers, from the tokens in it
timings.py          seconds of a run's phases, from its files
forecast.py         seconds per step of every split and staleness, and which to take
describing.py       the forecast for a person
ray_actors.py       Ray: cluster, actors, heartbeats
launch.py           the entry point: starts the actors, and ends everything with the run

Nothing is imported here: all but the last two can be had without Ray.
"""
