"""Child processes: started with an interpreter of their own, spoken to, followed, and ended for certain."""

from rlinf.core.process.child import ChildProcess as ChildProcess
from rlinf.core.process.child import is_running as is_running
from rlinf.core.process.connection import Connection as Connection
from rlinf.core.process.connection import ConnectionLost as ConnectionLost
from rlinf.core.process.connection import Message as Message
from rlinf.core.process.cores import own_cores as own_cores
from rlinf.core.process.exits import exit_reason as exit_reason
from rlinf.core.process.exits import log_ending as log_ending
from rlinf.core.process.exits import log_tail as log_tail
from rlinf.core.process.memory import SharedMemory as SharedMemory
from rlinf.core.process.ports import free_port as free_port
from rlinf.core.process.resident import resident as resident
