"""The same halves as actors of Ray: producers sample and score, consumers train, one driver keeps the order.

agenda.py      what the producers do next and with which weights: asynchronous running as arithmetic
production.py  the thread that works the agenda off
fleet.py       the producers as one: shares out, answers in order, lost ones replaced
weights.py     a version of the weights: manifest, buckets, fingerprint
producing.py   what a producer's process does
consuming.py   what a consumer's process does
consumers.py   all consumers as one: they train together, and the loss of one ends them
halves.py      both halves as the loop sees them
simulation.py  the agenda on a simulated clock: when steps are done, and who waits
scaling.py     what a step takes other numbers of producers and consumers, from the tokens in it
timings.py     the seconds of a run's phases, from its files
forecast.py    seconds per step of every split and staleness, and which to take
describing.py  the same for a person
ray_actors.py  Ray: cluster, actors, signs of life
placing.py     everything up, and down again: the way in

Nothing is imported here: all but the last two can be had without Ray.
"""
