"""An environment as somebody writes it for the library verifiers, who has never heard of this project."""

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class AddTask(vf.Task[Data]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply.rstrip("$").endswith(self.data.answer))

    @vf.reward(weight=0.25)
    async def called(self, trace) -> float:
        return float(len(trace.tool_messages))


class Sums(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Adds two numbers."""
        return str(a + b)


class Config(vf.TasksetConfig):
    numbers: int = 10
    tools: bool = False


class Adds(vf.Taskset[AddTask, Config]):
    def load(self):
        for a in range(self.config.numbers):
            for b in range(self.config.numbers):
                yield AddTask(Data(prompt=f"{a}+{b}=", answer=str(a + b)), self.config.task)

    @classmethod
    def toolsets(cls, config):
        return [Sums(vf.ToolsetConfig())] if config.tools else []


__all__ = ["Adds"]

if __name__ == "__main__":
    Sums.run()
