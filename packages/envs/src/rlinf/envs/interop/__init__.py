"""From and to Gymnasium's interface."""

from rlinf.envs.interop.custom import Custom as Custom
from rlinf.envs.interop.from_gymnasium import from_vector_env as from_vector_env
from rlinf.envs.interop.to_gymnasium import as_single_env as as_single_env
from rlinf.envs.interop.to_gymnasium import with_autoreset as with_autoreset
