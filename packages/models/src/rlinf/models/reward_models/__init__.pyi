"""Models that say how good something is: a text, an answer to a question about an image, a frame of a task."""

from rlinf.models.reward_models.losses import bradley_terry as bradley_terry
from rlinf.models.reward_models.losses import offset_cross_entropy as offset_cross_entropy
from rlinf.models.reward_models.losses import return_cross_entropy as return_cross_entropy
from rlinf.models.reward_models.losses import success_loss as success_loss
from rlinf.models.reward_models.progress import ProgressModelConfig as ProgressModelConfig
from rlinf.models.reward_models.returns import ReturnModelConfig as ReturnModelConfig
from rlinf.models.reward_models.rewards import JudgeReward as JudgeReward
from rlinf.models.reward_models.rewards import ModelReward as ModelReward
from rlinf.models.reward_models.sequence import SequenceRewardConfig as SequenceRewardConfig
from rlinf.models.reward_models.sequence_network import SequenceReward as SequenceReward
from rlinf.models.reward_models.success import SuccessClassifier as SuccessClassifier
from rlinf.models.reward_models.success import SuccessClassifierConfig as SuccessClassifierConfig
from rlinf.models.reward_models.success import frame_judge as frame_judge
from rlinf.models.reward_models.yes_no import YesNoReward as YesNoReward
from rlinf.models.reward_models.yes_no import YesNoRewardConfig as YesNoRewardConfig
