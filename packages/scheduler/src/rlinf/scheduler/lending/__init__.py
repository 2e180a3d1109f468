"""Lending devices: within a step they go from a stage that drains to one that waits, and come back. Without torch."""

from rlinf.scheduler.lending.allocations import Stage as Stage
from rlinf.scheduler.lending.demand import Demand as Demand
from rlinf.scheduler.lending.items import Item as Item
from rlinf.scheduler.lending.items import Result as Result
from rlinf.scheduler.lending.lender import Lender as Lender
from rlinf.scheduler.lending.lender import Moved as Moved
from rlinf.scheduler.lending.lender import StepReport as StepReport
from rlinf.scheduler.lending.policy import Drained as Drained
from rlinf.scheduler.lending.policy import Forecast as Forecast
from rlinf.scheduler.lending.policy import Move as Move
from rlinf.scheduler.lending.policy import MovePolicy as MovePolicy
from rlinf.scheduler.lending.policy import Never as Never
from rlinf.scheduler.lending.worker import LentWorker as LentWorker
