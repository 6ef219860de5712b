"""ColossalChat's distributed reinforcement learning: the flags of `rl_example.py` and its zero-bubble variant.

arguments.py  every flag with its default, and argv read as argparse reads it there
batches.py    the numbers that have to fit each other, and the nearest ones that do
rounds.py     batch sizes, processes and staleness in Paceline's options
tasks.py      model, rows, prompts, rewards, evaluation
objective.py  the four algorithms and the optimiser
sampling.py   how completions are drawn
keeping.py    what is written down and where
"""

from paceline.compat.commands.colossalchat.arguments import SCRIPTS, Read, read, script_of
from paceline.compat.commands.colossalchat.batches import settle
from paceline.compat.commands.colossalchat.keeping import keeping
from paceline.compat.commands.colossalchat.objective import objective
from paceline.compat.commands.colossalchat.rounds import rounds
from paceline.compat.commands.colossalchat.sampling import sampling
from paceline.compat.commands.colossalchat.tasks import tasks
from paceline.compat.commands.translation import CommandLine, Translation

PARTS = (tasks, sampling, objective, rounds, keeping)
"""Each makes some of the options, from all arguments."""


class ColossalChat:
    """See `CommandReader`."""

    name = "ColossalChat"
    example = "python rl_example.py --dataset D --model M -t 4 -i 4 -b vllm ..."

    def recognises(self, command: CommandLine) -> bool:
        """See `CommandReader`."""
        return script_of(command.words) in SCRIPTS

    def translate(self, command: CommandLine, *, repair: bool) -> Translation:
        """See `CommandReader`."""
        found = read(command.words)
        arguments, notes = settle(found.arguments, repair=repair)
        settled = Read(arguments=arguments, given=found.given, script=found.script)
        start = Translation(notes=(*found.repeated, *notes), environment=command.environment)
        return sum((part(settled) for part in PARTS), start)
