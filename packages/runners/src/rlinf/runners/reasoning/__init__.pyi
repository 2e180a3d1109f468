from rlinf.runners.reasoning.actor_worker import ReasoningActor as ReasoningActor
from rlinf.runners.reasoning.evaluation import ReasoningEvalRunner as ReasoningEvalRunner
from rlinf.runners.reasoning.inference_worker import InferenceWorker as InferenceWorker
from rlinf.runners.reasoning.reward_worker import RewardWorker as RewardWorker
from rlinf.runners.reasoning.rollout_worker import ReasoningRolloutWorker as ReasoningRolloutWorker
from rlinf.runners.reasoning.rules import read_reasoning as read_reasoning
from rlinf.runners.reasoning.runner import ReasoningRunner as ReasoningRunner
from rlinf.runners.reasoning.schema import ReasoningConfig as ReasoningConfig
