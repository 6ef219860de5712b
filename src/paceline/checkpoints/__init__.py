"""Everything a run has on disk: its directory, its journal, its checkpoints. Safetensors and JSON, no pickle.

The run directory is the public file interface:

    config.yaml            the resolved configuration, under a head that says who wrote it
    identity.json          options, data, model and tokenizer as the run has them, and what changed after which step
    metrics.jsonl          one JSON object per optimiser step
    evals.jsonl            one JSON object per evaluation
    journal.jsonl          one JSON object per step whose rollouts are on disk, with their checksum
    rollouts/step-000001.jsonl        one JSON object per rollout of a step
    evals/SET-step-000000.jsonl       one JSON object per held-out completion (SET percent-encoded)
    kept/step-000001.jsonl            the rollouts of a step that is to be looked at, as they were
    tokens/step-000001.jsonl          what a replay says of a step's tokens
    stuck/TIME/            the stacks of all threads when nothing happened any more
    summary.json           before, after and the time split, written when the run ends
    timeline.json          with `profile`: what each process did when, as trace events
    aside/after-step-000001/          what followed an older checkpoint that the run resumed from: a run of its own
    .lock                  process and host that write here now, or did last: the mark of a run directory

A checkpoint is complete or absent: it is written to a draft directory, synced and renamed.

    checkpoints/step-000100/
      model/                   a directory that `transformers` loads, weights in float32; of an adapter, peft's format
      optimizer.safetensors    the optimiser's tensors by parameter name, its numbers in the header
      reference.safetensors    the reference model, where it moves during the run
      progress.json            step, position in the data, policy version
      manifest.json            size and SHA-256 of every other file

Where no rank holds the whole model, each writes the pieces that it holds and no earlier rank does:

      model/                   config.json, tokenizer, pieces-00001-of-00004.safetensors ...
      optimizer-00001-of-00004.safetensors ...

A file can be read in whole or in pieces, so any number of ranks in any layout can resume from it. Random numbers
need no saving: order and samples are functions of the seed and of the position.

run_directory.py    a run's directory: create, open, lock, write, read
run_files.py        lines and whole files on disk
existing_runs.py    check of a directory before a run takes it
lock.py             one writer at a time, and the mark of a run directory
journal.py          which steps' rollouts are committed, and whether they are whole
finding.py          whole checkpoints in a directory; damaged ones are set aside
digests.py          digests of files, prompts and datasets
saving.py           all ranks take and write one checkpoint
free_space.py       space on the disk, and main memory for copies
optimizer_state.py  the optimiser's state and the reference's weights
trained.py          what a checkpoint needs to know of a model
"""
