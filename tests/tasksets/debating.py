"""A taskset of verifiers that two models play."""

import verifiers.v1 as vf


class TalkConfig(vf.EnvConfig):
    one: vf.AgentConfig = vf.AgentConfig()
    other: vf.AgentConfig = vf.AgentConfig()


class Talk(vf.Env[TalkConfig]):
    async def run(self, task, agents):
        await agents.one.run(task)


class TalkTaskset(vf.Taskset[vf.Task]):
    def load(self):
        return [vf.Task(vf.TaskData(prompt="Talk."))]


__all__ = ["Talk", "TalkTaskset"]
