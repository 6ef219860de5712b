"""A rank's pieces of whole tensors, and files of pieces, written by one layout of ranks and read by any other.

The header of such a file gives the pieces' offsets in the whole tensors, in the format of torch's distributed
checkpoints (`DCP_SHARDING_INFO`): torch's HuggingFaceStorageReader reads them too. Its writer is not used: it sends its
plans as pickle, and needs more of a process group than a few lines of JSON.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import PreTrainedModel
from typing_extensions import override

from paceline.models.parallel.ranks import Ranks
from paceline.models.parallel.staging import StagingBuffers, copies

OFFSETS = "DCP_SHARDING_INFO"
"""The header's entry: a JSON object with {"saved_offsets": [...]} for each tensor of the file."""
_NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A box of a whole tensor."""

    tensor: Tensor
    """Values of the box; a view, no copy."""
    offset: tuple[int, ...]
    """Index of its first element in the whole tensor."""
    shape: tuple[int, ...]
    """Shape of the whole tensor."""

    @property
    def is_whole(self) -> bool:
        """True if the piece is the whole tensor."""
        return tuple(self.tensor.shape) == self.shape


def piece_of(tensor: Tensor) -> Piece:
    """Return the part of a tensor that is on this rank: it may be empty, or all of it where ranks hold copies."""
    if not isinstance(tensor, DTensor):
        return Piece(tensor=tensor.detach(), offset=(0,) * tensor.ndim, shape=tuple(tensor.shape))
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Piece(tensor=cast(DTensor, tensor.detach()).to_local(), offset=tuple(offset), shape=tuple(tensor.shape))


def saved_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return parameters and saved buffers by their names in the whole model; a tied tensor once, by its first name."""
    # a rank that has the output embedding of a tied model and not the input's, which is the same, knows it by the
    # configuration: the first name of each such tensor, by its second one
    keys = type(model)._tied_weights_keys
    is_tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False) and isinstance(keys, dict)
    firsts = keys if is_tied else {}
    state = model.state_dict(keep_vars=True)
    seen, tensors = set[int](), dict[str, Tensor]()
    for name, tensor in state.items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[firsts[name] if name in firsts and firsts[name] not in state else name] = tensor
    return tensors


def written_here(pieces: Mapping[str, Piece], ranks: Ranks) -> tuple[list[str], list[int]]:
    """Return the pieces that this rank writes, and the ranks that write any; all ranks make this call.

    The first rank that holds a piece writes it; empty pieces are not written.
    """
    offsets = {name: list(piece.offset) for name, piece in pieces.items() if piece.tensor.numel()}
    writers = dict[tuple[str, tuple[int, ...]], int]()
    for rank, text in enumerate(ranks.all_gather_text(json.dumps(offsets))):
        for name, offset in json.loads(text).items():
            writers.setdefault((name, tuple(offset)), rank)
    mine = [name for name, offset in offsets.items() if writers[name, tuple(offset)] == ranks.rank]
    return mine, sorted(set(writers.values()))


class Writer(Protocol):
    """Writes a rank's part of a checkpoint into a directory."""

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""

    def copied(self, staging: StagingBuffers) -> "Writer":
        """Return a copy in staging buffers, which can be written while the originals change."""

    def write(self, folder: Path) -> Sequence[Path]:
        """Write this rank's files into an existing directory and return them; OSError or SafetensorError on failure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part(Writer):
    """One rank's file of pieces, or nothing if lower ranks write the same pieces."""

    name: str
    """Name of the file."""
    pieces: Mapping[str, Piece]
    header: Mapping[str, str]

    @property
    @override
    def nbytes(self) -> int:
        return sum(piece.tensor.nbytes for piece in self.pieces.values())

    @override
    def copied(self, staging: StagingBuffers) -> "Part":
        copied = copies({name: piece.tensor for name, piece in self.pieces.items()}, staging)
        return replace(self, pieces={name: replace(piece, tensor=copied[name]) for name, piece in self.pieces.items()})

    @override
    def write(self, folder: Path) -> list[Path]:
        if not self.name:
            return []
        header = dict(self.header)
        if not all(piece.is_whole for piece in self.pieces.values()):
            header[OFFSETS] = json.dumps({name: {"saved_offsets": piece.offset} for name, piece in self.pieces.items()})
        # in main memory, and each in memory of its own, as the format wants it: some optimisers keep one table for all
        apart, seen = dict[str, Tensor](), set[int]()
        for name, piece in self.pieces.items():
            saved = piece.tensor.detach().cpu().contiguous()
            apart[name] = saved.clone() if saved.data_ptr() in seen else saved
            seen.add(saved.data_ptr())
        save_file(apart, folder / self.name, header)
        return [folder / self.name]


NOTHING = Part(name="", pieces={}, header={})
"""Part of a rank that writes nothing."""


def part_of(stem: str, tensors: Mapping[str, Tensor], ranks: Ranks, header: Mapping[str, str]) -> Part:
    """Return what this rank writes of `tensors`, each of which is whole or a DTensor; all ranks make this call.

    A single rank writes `stem.safetensors`, several `stem-00001-of-00004.safetensors` and so on.
    """
    pieces = {name: piece_of(tensor) for name, tensor in tensors.items()}
    mine, writers = written_here(pieces, ranks)
    if ranks.rank not in (writers or [0]):
        return NOTHING
    written = {name: pieces[name] for name in mine}
    number = f"-{writers.index(ranks.rank) + 1:05d}-of-{len(writers):05d}" if len(writers) > 1 else ""
    return Part(name=f"{stem}{number}.safetensors", pieces=written, header={"format": "pt", **header})


def files_of(folder: Path, stem: str) -> list[Path]:
    """List the files that `part_of` named, in order; FileNotFoundError if any is missing."""
    alone = folder / f"{stem}.safetensors"
    if alone.is_file():
        return [alone]
    paths = {path.name: path for path in folder.glob(f"{stem}-*.safetensors")}
    numbers = [match for name in paths if (match := _NUMBERED.fullmatch(name[len(stem) : -len(".safetensors")]))]
    if not numbers:
        raise FileNotFoundError(f"{alone} is not there")
    count = int(numbers[0][2])
    wanted = [f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    for name in wanted:
        if name not in paths:
            raise FileNotFoundError(f"{folder / name} is not there")
    return [paths[name] for name in wanted]


class Stored:
    """Whole tensors by name, stored as pieces in open files. Only what is requested is read."""

    def __init__(self, files: Sequence[tuple[Path, Any]]) -> None:
        """Index the tensors of opened files; `open_stored` opens them."""
        self.headers: list[dict[str, str]] = [file.metadata() or {} for _, file in files]
        self.paths = [path for path, _ in files]
        self._boxes = dict[str, list[tuple[tuple[int, ...], tuple[int, ...], Any]]]()
        for (_, file), header in zip(files, self.headers, strict=True):
            placed = json.loads(header[OFFSETS]) if OFFSETS in header else None
            for name in file.keys():  # noqa: SIM118 - not a dict
                size = tuple(file.get_slice(name).get_shape())
                offset = (0,) * len(size) if placed is None else tuple(placed[name]["saved_offsets"])
                self._boxes.setdefault(name, []).append((offset, size, file))

    def names(self) -> Iterable[str]:
        """Names of all stored tensors."""
        return self._boxes.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor; ValueError if there is none of this name."""
        if name not in self._boxes:
            raise ValueError(f"{self.paths[0]} has no tensor {name}")
        ends = [map(sum, zip(offset, size, strict=True)) for offset, size, _ in self._boxes[name]]
        return tuple(max(each) for each in zip(*ends, strict=True))

    def read(self, name: str) -> Tensor:
        """Read a whole tensor; ValueError if there is none of this name, or some of it is missing."""
        shape = self.shape(name)
        return self._box(name, (0,) * len(shape), shape)

    def read_piece(self, name: str, wanted: Tensor) -> Tensor:
        """Read this rank's part of a tensor laid out as `wanted`, in its stored precision.

        ValueError: there is none of this name, it has another shape, or some of it is missing.
        """
        piece = piece_of(wanted)
        if self.shape(name) != piece.shape:
            raise ValueError(f"{self.paths[0]} has {name} as {list(self.shape(name))}, not as {list(piece.shape)}")
        return self._box(name, piece.offset, tuple(piece.tensor.shape))

    def fill(self, model: PreTrainedModel) -> None:
        """Read this rank's part of every weight and saved buffer of a model; see `read_piece` for what it refuses."""
        for name, tensor in saved_tensors(model).items():
            piece_of(tensor).tensor.copy_(self.read_piece(name, tensor))

    def _box(self, name: str, start: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
        box: Tensor | None = None
        missing = math.prod(size)
        for offset, length, file in self._boxes[name]:
            ranges = [(max(a, b), min(a + n, b + m)) for a, n, b, m in zip(start, size, offset, length, strict=True)]
            if any(low >= high for low, high in ranges):
                continue
            part = _slice(file, name, [slice(low - b, high - b) for (low, high), b in zip(ranges, offset, strict=True)])
            if tuple(part.shape) == size:
                return part
            box = torch.empty(size, dtype=part.dtype) if box is None else box
            box[tuple(slice(low - a, high - a) for (low, high), a in zip(ranges, start, strict=True))] = part
            missing -= part.numel()
        if missing:
            raise ValueError(f"{self.paths[0]} and the files beside it have not all of {name}")
        if box is None:  # nothing was asked for
            _, length, file = self._boxes[name][0]
            box = torch.empty(size, dtype=_slice(file, name, [slice(0, 0) for _ in length]).dtype)
        return box


@contextmanager
def open_stored(paths: Sequence[Path]) -> Iterator[Stored]:
    """Open the tensors in some files; OSError, SafetensorError, KeyError or ValueError if one cannot be read."""
    with ExitStack() as closing:
        yield Stored([(path, closing.enter_context(safe_open(path, framework="pt"))) for path in paths])


def _slice(file: Any, name: str, ranges: Sequence[slice]) -> Tensor:
    part: Tensor = file.get_slice(name)[tuple(ranges)] if ranges else file.get_tensor(name)
    return part
