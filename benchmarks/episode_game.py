"""A game for `benchmarks.episodes`, as users of `verifiers` 0.4 write theirs: hints follow until a number is found."""

from __future__ import annotations

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]


class NumberData(vf.TaskData):
    """The number to find."""

    number: int


class NumberTask(vf.Task[NumberData]):
    """Rewards a reply with the number."""

    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        return float(str(self.data.number) in (trace.last_reply or "").split())

    @vf.reward(weight=-0.1)
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Numbers(vf.Taskset[NumberTask]):
    """A number from 1 to 3."""

    def load(self):
        for number in range(24):
            yield NumberTask(NumberData(prompt="1 to 3", number=1 + number % 3), self.config.task)


class NumbersConfig(vf.EnvConfig):
    """One player."""

    player: vf.AgentConfig = vf.AgentConfig()


class NumbersEnv(vf.Env[NumbersConfig]):
    """Says "higher" or "lower", and never ends by itself."""

    async def run(self, task: NumberTask, agents: vf.Agents) -> None:
        async with agents.player.interaction(task) as talk:
            await talk.turn()
            while True:
                await talk.turn("higher" if len(talk.trace.last_reply or "") % 2 else "lower")


__all__ = ["Numbers", "NumbersEnv"]
