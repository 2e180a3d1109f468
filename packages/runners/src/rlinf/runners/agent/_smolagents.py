"""The library smolagents: the run's tools as its own, and one run of its tool-calling agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent
from smolagents import Tool as SmolTool

from rlinf.core.agents import AgentTask, Tool

Call = Callable[[str, dict[str, object]], str]


class RunTool(SmolTool):
    """A tool of the run as smolagents knows them; whatever goes wrong is a text for the model."""

    # smolagents expects a parameter of `forward` for each of `inputs`, and `forward` takes whatever the model gives.
    skip_forward_signature_validation = True
    output_type = "string"

    def __init__(self, tool: Tool, call: Call) -> None:
        self.name, self.description, self._call = tool.name, tool.description, call
        properties = cast("Mapping[str, Mapping[str, Any]]", tool.parameters.get("properties", {}))
        self.inputs = {
            name: {"type": "any", **schema, "description": schema.get("description") or name} for name, schema in properties.items()
        }
        super().__init__()  # pyright: ignore[reportUnknownMemberType]

    def forward(self, **arguments: object) -> str:
        """The answer."""
        return self._call(self.name, arguments)


def run_agent(task: AgentTask, base_url: str, api_key: str, model: str, call: Call) -> str:
    """The answer of one run."""
    # Nothing repeats a request: the session counts each one as a turn.
    client = {"max_retries": 0}
    policy = OpenAIModel(model_id=model, api_base=base_url, api_key=api_key, client_kwargs=client, retry=False)
    tools: list[Any] = [RunTool(tool, call) for tool in task.tools.tools]
    agent = ToolCallingAgent(tools=tools, model=policy, max_steps=task.max_turns, verbosity_level=LogLevel.OFF)
    prompt = task.problem.prompt
    said = prompt if isinstance(prompt, str) else "\n\n".join(m["content"] for m in prompt if m["role"] == "user")
    return str(cast("Any", agent).run(said))
