"""Tasks from rows of a file, directory, Hub dataset or generator, and their order.

load_rows -> Row -> screen -> build_tasks -> Task, taken in the order of task_index

Up to `WHOLE` rows all of this happens before the first step. Of more rows a sample is read then; each is read, screened
and tokenised when it is taken."""
