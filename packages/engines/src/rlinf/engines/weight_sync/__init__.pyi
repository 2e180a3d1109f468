from rlinf.engines.weight_sync.bucket import BucketWeightSync as BucketWeightSync
from rlinf.engines.weight_sync.bucket import FullWeightSync as FullWeightSync
from rlinf.engines.weight_sync.disk import DiskWeightSync as DiskWeightSync
from rlinf.engines.weight_sync.patch import PatchWeightSync as PatchWeightSync
