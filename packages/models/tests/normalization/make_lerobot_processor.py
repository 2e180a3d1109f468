"""Makes policy_preprocessor_step_1_normalizer_processor.safetensors and .json as lerobot 0.6.1 saves them; needs Python 3.12.

uv venv --python 3.12 /tmp/lerobot && uv pip install --python /tmp/lerobot/bin/python lerobot==0.6.1
/tmp/lerobot/bin/python packages/models/tests/normalization/make_lerobot_processor.py
"""

from pathlib import Path

import torch
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.processor import DataProcessorPipeline, NormalizerProcessorStep, RenameObservationsProcessorStep

FOLDER = Path(__file__).parent / "lerobot"
FEATURES = {
    "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(2,)),
    "action": PolicyFeature(type=FeatureType.ACTION, shape=(3,)),
}
STATS = {
    name: {stat: (torch.arange(n) + shift).float() for stat, shift in (("mean", 0.5), ("std", 2.0), ("min", -3.0), ("max", 4.0))}
    for name, n in (("observation.state", 2), ("action", 3))
}

if __name__ == "__main__":
    modes = {FeatureType.STATE: NormalizationMode.MEAN_STD, FeatureType.ACTION: NormalizationMode.MIN_MAX}
    steps = [RenameObservationsProcessorStep({}), NormalizerProcessorStep(features=FEATURES, norm_map=modes, stats=STATS)]
    DataProcessorPipeline(steps=steps, name="policy_preprocessor").save_pretrained(FOLDER)
    print(sorted(file.name for file in FOLDER.iterdir()))
