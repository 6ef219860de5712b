"""A run's numbers to the trackers that people know: TensorBoard, Weights & Biases, Trackio, MLflow.

check_trackers(names) before anything is loaded; open_trackers -> Trackers; flat_numbers(record) -> Trackers.log
"""
