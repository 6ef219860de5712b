"""Several processes that train one policy together.

ranks.py          what they need of each other, and a process that is alone
process_group.py  where they meet
mesh.py           their places: which of them hold the same, which hold parts of it
sharding.py       slices of weights, gradients and optimiser state (ZeRO)
split.py          a model's weights to the places of a mesh
mesh_ranks.py     gradients and numbers of all, over a mesh
pieces.py         what of whole tensors lies on a rank
piece_files.py    tensors in files, written in one layout and read in any other
gathering.py      whole weights, one at a time
"""

from paceline.parallel.gathering import full_parameters, full_tensors
from paceline.parallel.mesh import Mesh, Sizes, make_mesh
from paceline.parallel.mesh_ranks import MeshRanks
from paceline.parallel.piece_files import Part, Stored, files_of, open_stored, part_of
from paceline.parallel.pieces import Piece, like, piece_of, saved_tensors
from paceline.parallel.process_group import Meeting, meeting_at, process_group
from paceline.parallel.ranks import ONE_RANK, WHOLE, RankLost, Ranks, Split
from paceline.parallel.sharding import Sharding
from paceline.parallel.split import MeshSplit

__all__ = [
    "Ranks",
    "Split",
    "ONE_RANK",
    "WHOLE",
    "RankLost",
    "Meeting",
    "meeting_at",
    "process_group",
    "Sizes",
    "Mesh",
    "make_mesh",
    "Sharding",
    "MeshSplit",
    "MeshRanks",
    "Piece",
    "piece_of",
    "like",
    "saved_tensors",
    "Part",
    "Stored",
    "part_of",
    "files_of",
    "open_stored",
    "full_parameters",
    "full_tensors",
]
