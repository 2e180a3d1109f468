"""Moving weights from one worker to others."""

from rlinf.engines.weight_sync.bucket import BucketWeightSync as BucketWeightSync
from rlinf.engines.weight_sync.disk import DiskWeightSync as DiskWeightSync
from rlinf.engines.weight_sync.full import MANIFEST as MANIFEST
from rlinf.engines.weight_sync.full import PAYLOAD as PAYLOAD
from rlinf.engines.weight_sync.full import FullWeightSync as FullWeightSync
from rlinf.engines.weight_sync.full import Payload as Payload
from rlinf.engines.weight_sync.full import Refusal as Refusal
from rlinf.engines.weight_sync.patch import PatchWeightSync as PatchWeightSync
