"""Everything a run has on disk: its directory, its journal, its checkpoints. Safetensors and JSON, no pickle.

The run directory is the public file interface: `docs/runs.md` lists its files, `docs/layouts.md` those of a checkpoint
of several ranks. A checkpoint is complete or absent: it is written to a draft directory, synced and renamed. A file can
be read in whole or in pieces, so any number of ranks in any layout can resume from it. Random numbers need no saving:
order and samples are functions of the seed and of the position.

    model/                   a directory that `transformers` loads, weights in float32; of an adapter, peft's format
    optimizer.safetensors    the optimiser's tensors by parameter name, its numbers in the header
    reference.safetensors    the reference model, where it moves during the run
    progress.json            step, position in the data, policy version
    manifest.json            size and SHA-256 of every other file

run_directory.py    a run's directory: create, open, lock, write, read
run_files.py        lines and whole files on disk, also in the background
existing_runs.py    check of a directory before a run takes it; one writer at a time; how the last attempt ended
journal.py          which steps' rollouts are committed, and whether they are whole
finding.py          whole checkpoints in a directory; damaged ones are set aside
digests.py          digests of files, prompts and datasets (weights: `kernels/checksums.py`)
saving.py           all ranks take and write one checkpoint; space for it on the disk and in main memory
optimizer_state.py  the optimiser's state and the reference's weights
"""
