"""Tasks from rows of a file, directory, Hub dataset or generator, and their order.

load_rows -> Row -> screen -> build_tasks -> Task, taken in the order of task_index

Up to `WHOLE` rows all of it happens before the first step; of more rows a sample is looked at then, and each is read,
screened and tokenised when it is taken.
"""
