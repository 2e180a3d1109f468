"""Sampling and scoring of flow policies, one for all: deterministic, by a stochastic equation, or with learned noise."""

from rlinf.models.flow.chain import Chain as Chain
from rlinf.models.flow.chain import ChainScore as ChainScore
from rlinf.models.flow.chain import sample_chain as sample_chain
from rlinf.models.flow.chain import score_chain as score_chain
from rlinf.models.flow.density import of_decision as of_decision
from rlinf.models.flow.draws import draw_noise as draw_noise
from rlinf.models.flow.guidance import guided as guided
from rlinf.models.flow.guidance import prefix_weights as prefix_weights
from rlinf.models.flow.kernel import transition as transition
from rlinf.models.flow.matching import draw_time as draw_time
from rlinf.models.flow.matching import fpo_logprob as fpo_logprob
from rlinf.models.flow.matching import interpolate as interpolate
from rlinf.models.flow.matching import matching_loss as matching_loss
from rlinf.models.flow.noise import ExploreNoiseNet as ExploreNoiseNet
from rlinf.models.flow.noise import initial_noise as initial_noise
from rlinf.models.flow.sampling import FlowSampling as FlowSampling
