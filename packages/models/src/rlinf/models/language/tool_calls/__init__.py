"""How language models write calls of tools."""

from rlinf.models.language.tool_calls.json_calls import HermesFormat as HermesFormat
from rlinf.models.language.tool_calls.json_calls import LlamaFormat as LlamaFormat
from rlinf.models.language.tool_calls.tags import TagFormat as TagFormat
from rlinf.models.language.tool_calls.xml_calls import QwenXMLFormat as QwenXMLFormat
