"""Presents a run on the terminal, on pages and in trackers. Nothing here changes what is trained.

console/        the screen of a running run
page/           report.html
viewer/         completions in the browser
trackers/       TensorBoard, Weights & Biases, Trackio, MLflow
model_card.py   README.md of a trained model
papers.py       the paper that a card cites
images.py       small copies of a run's images for pages
trained_run.py  a run on disk for a program or a notebook, and its results in sentences and one record
format.py       numbers as people read them
"""
