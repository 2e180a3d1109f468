"""A generated knowledge base of people, companies, cities and countries, and questions that several of its passages answer."""

from rlinf.envs.knowledge.base import Entity as Entity
from rlinf.envs.knowledge.base import KnowledgeBase as KnowledgeBase
from rlinf.envs.knowledge.base import Passage as Passage
from rlinf.envs.knowledge.facts import KINDS as KINDS
from rlinf.envs.knowledge.facts import RELATIONS as RELATIONS
from rlinf.envs.knowledge.facts import Kind as Kind
from rlinf.envs.knowledge.facts import Relation as Relation
from rlinf.envs.knowledge.generation import Knowledge as Knowledge
from rlinf.envs.knowledge.generation import generated as generated
from rlinf.envs.knowledge.questions import MultiHop as MultiHop
from rlinf.envs.knowledge.questions import Question as Question
from rlinf.envs.knowledge.tables import Table as Table
from rlinf.envs.knowledge.tables import WideSearch as WideSearch
