"""Tasks from rows of a file, directory, Hub dataset or generator, and their order.

load_rows -> Row -> screen -> build_tasks -> Task, taken in the order of task_index

Up to `WHOLE` rows all of this happens before the first step. Of more rows a sample is read then; each is read, screened
and tokenised when it is taken.

sources.py     rows by a dataset's address, and several datasets joined
files.py       rows of files and directories: whole, or on demand
tables.py      tables by `datasets`: of CSV files, or streamed
generated.py   word problems, games and seeds, the same every time
shapes.py      small pictures and questions about them, the same every time
programs.py    tiny programs to write, the same every time
tasksets.py    tasks of verifiers as rows
formats.py     prompt and answer of a row, recognised by its columns
row_images.py  images of a row: where they stand in its prompt, what stands for them
rows.py        a row, rows on demand, and their order
tasks.py       rows to tokenised tasks; prompts that are too long
prompts.py     the prompt of a row: system message, chat template, cut; lengths of prompts
pictures.py    images of rows: their pixels, by hash; what stands for them in a prompt
duplicates.py  prompts that stand in several rows
answers.py     answers in a text: tags, boxes, `####`
wording.py     words around a number: which lead to it, end a statement, or change its value
"""
