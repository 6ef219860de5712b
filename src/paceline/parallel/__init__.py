"""Several processes that train one policy together.

ranks.py          what they need of each other, and a process that is alone
process_group.py  the same over a process group of torch
"""

from paceline.parallel.process_group import Meeting, ProcessRanks, joined_ranks, meeting_at
from paceline.parallel.ranks import ONE_RANK, RankLost, Ranks

__all__ = ["Ranks", "ONE_RANK", "RankLost", "Meeting", "ProcessRanks", "joined_ranks", "meeting_at"]
