"""A run's halves on a cluster: actors up, weights out, and everything down again at the end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.checkpoint import Checkpoint
from paceline.cluster.fleet import Fleet
from paceline.cluster.halves import ClusterHalves
from paceline.cluster.ray_actors import RayConsumer, RayProducers, Share, ray_cluster
from paceline.config import Config
from paceline.models import choose_device
from paceline.train import Placed, Prepared, make_feed


@contextmanager
def on_a_cluster(config: Config, prepared: Prepared, checkpoint: Checkpoint | None) -> Iterator[Placed]:
    """The `Place` of a run with `--cluster`."""
    share = Share(cpus=_cores(config), gpus=1 if choose_device(config.model).type == "cuda" else 0)
    with ray_cluster(config.cluster, share):
        consumer = RayConsumer(config, None if checkpoint is None else checkpoint.path.absolute(), share)
        fleet = Fleet(RayProducers(config, share))
        done = 0 if checkpoint is None else checkpoint.progress.step
        feed = make_feed(config, prepared, checkpoint)
        halves = ClusterHalves(config, prepared, feed, consumer=consumer, fleet=fleet, done=done)
        try:
            yield Placed(halves=halves, sentences=(_layout(config), *consumer.call("sentences")))
        finally:
            halves.close()


def _cores(config: Config) -> int:
    """Of each process: on a cluster of this machine as many as there are for it."""
    options = config.cluster
    here = (os.cpu_count() or 1) // (options.num_producers + 1) if options.ray_address is None else 1
    return config.model.threads or max(1, here)


def _layout(config: Config) -> str:
    options = config.cluster
    where = "a cluster of this machine" if options.ray_address is None else f"the cluster at {options.ray_address}"
    ahead = options.max_staleness
    order = f"sampling is up to {ahead} step{'s' * (ahead > 1)} ahead of training"
    order = order if ahead else "sampling and training take turns"
    count = "one producer and" if options.num_producers == 1 else f"{options.num_producers} producers and"
    return f"{count} one consumer on {where}; {order}"
