"""What sits on top of a policy: values, critics, a temperature."""

from rlinf.models.heads.batch_renorm import BatchRenorm as BatchRenorm
from rlinf.models.heads.critics import CrossQHead as CrossQHead
from rlinf.models.heads.critics import MultiQHead as MultiQHead
from rlinf.models.heads.temperature import EntropyTemperature as EntropyTemperature
from rlinf.models.heads.value import ValueHead as ValueHead
