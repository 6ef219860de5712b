"""What people see of a run, on the terminal, on pages and in trackers. Nothing here computes what is trained.

console/     the screen of a running run
page/        report.html
viewer/      completions in the browser
model_card/  README.md of a trained model
trackers/    TensorBoard, Weights & Biases, Trackio, MLflow
notebook.py  a run as the output of a notebook's cell
summary.py   what came of a run, in one record
trained_run.py  a run on disk for a program or a notebook
format.py    numbers as people read them
"""
