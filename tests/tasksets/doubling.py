"""A taskset of verifiers with a tool and a system prompt, played by the package's own program."""

import verifiers.v1 as vf


class Doubling(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    async def double(self, number: int) -> str:
        """Double a number."""
        return str(2 * number)


class SumTask(vf.Task[vf.TaskData]):
    @classmethod
    def toolsets(cls, config):
        return [Doubling(vf.ToolsetConfig())]

    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float("42" in trace.last_reply)


class SumTaskset(vf.Taskset[SumTask]):
    def load(self):
        return [SumTask(vf.TaskData(prompt="How much is 2 * 21?", system_prompt="Use the tool."), self.config.task)]


__all__ = ["SumTaskset"]

if __name__ == "__main__":  # the package starts the tools' server so
    Doubling.run()
