"""π0 and π0.5: a vision-language model, and an action expert that flows from noise to a chunk of actions."""

from rlinf.models.pi0.policy import PI0PolicyConfig as PI0PolicyConfig
from rlinf.models.pi0.policy import PI05PolicyConfig as PI05PolicyConfig
