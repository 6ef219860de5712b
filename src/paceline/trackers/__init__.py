"""A run's numbers to the trackers that people know: TensorBoard, Weights & Biases, Trackio, MLflow.

check_trackers(names) before anything is loaded; open_trackers -> Trackers; flat_numbers(record) -> Trackers.log
"""

from paceline.trackers.libraries import Tracker
from paceline.trackers.numbers import flat_numbers
from paceline.trackers.opening import Trackers, check_trackers, open_trackers

__all__ = ["Tracker", "Trackers", "check_trackers", "flat_numbers", "open_trackers"]
