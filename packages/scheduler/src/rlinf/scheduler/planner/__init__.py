"""The planner: what a placement will cost, and which one is best, before anything is started. Without Ray and torch."""

from rlinf.scheduler.planner.costs import LinearCost as LinearCost
from rlinf.scheduler.planner.costs import Memory as Memory
from rlinf.scheduler.planner.costs import fit as fit
from rlinf.scheduler.planner.explain import explain as explain
from rlinf.scheduler.planner.explain import front as front
from rlinf.scheduler.planner.explain import interval as interval
from rlinf.scheduler.planner.fitting import observe as observe
from rlinf.scheduler.planner.layout import Machine as Machine
from rlinf.scheduler.planner.layout import Slot as Slot
from rlinf.scheduler.planner.search import Candidate as Candidate
from rlinf.scheduler.planner.search import Plan as Plan
from rlinf.scheduler.planner.search import Space as Space
from rlinf.scheduler.planner.search import search as search
from rlinf.scheduler.planner.simulation.simulator import Options as Options
from rlinf.scheduler.planner.simulation.simulator import Simulation as Simulation
from rlinf.scheduler.planner.simulation.simulator import simulate as simulate
from rlinf.scheduler.planner.timeline import draw as draw
from rlinf.scheduler.planner.timeline import write_trace as write_trace
from rlinf.scheduler.planner.workload import Channel as Channel
from rlinf.scheduler.planner.workload import Component as Component
from rlinf.scheduler.planner.workload import Loop as Loop
from rlinf.scheduler.planner.workload import Route as Route
from rlinf.scheduler.planner.workload import Workload as Workload
