"""Several processes that train one policy together.

ranks.py          what they need of each other, and a process that is alone
process_group.py  where they meet
mesh.py           their places: which of them hold the same, which hold parts of it
sharding.py       slices of weights, gradients and optimiser state (ZeRO)
split.py          a model's weights to the places of a mesh
stages.py         a model's layers to the stages of a pipeline
mesh_ranks.py     gradients and numbers of all, over a mesh
"""

from paceline.parallel.mesh import Mesh, Sizes, make_mesh
from paceline.parallel.mesh_ranks import MeshRanks
from paceline.parallel.process_group import Meeting, meeting_at, process_group
from paceline.parallel.ranks import ONE_RANK, WHOLE, RankLost, Ranks, Split
from paceline.parallel.sharding import Sharding
from paceline.parallel.split import MeshSplit
from paceline.parallel.stages import Schedule, Stages, check_stages, divide, stage_of

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
    "Schedule",
    "Stages",
    "check_stages",
    "divide",
    "stage_of",
]
