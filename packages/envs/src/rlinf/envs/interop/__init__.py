"""From and to Gymnasium's interface, and to Stable-Baselines3's."""

from rlinf.envs.interop.custom import Custom as Custom
from rlinf.envs.interop.from_gymnasium import from_vector_env as from_vector_env
from rlinf.envs.interop.to_gymnasium import as_single_env as as_single_env
from rlinf.envs.interop.to_gymnasium import with_autoreset as with_autoreset
from rlinf.envs.interop.to_stable_baselines3 import as_sb3_vec_env as as_sb3_vec_env
