"""Language and vision-language models: scored token by token."""

from rlinf.models.language.folder import save_language_model as save_language_model
from rlinf.models.language.images import image_columns as image_columns
from rlinf.models.language.model import LanguageModel as LanguageModel
from rlinf.models.language.policy import CausalLMConfig as CausalLMConfig
from rlinf.models.language.policy import VisionLanguageConfig as VisionLanguageConfig
from rlinf.models.language.scoring import score_tokens as score_tokens
from rlinf.models.language.tokens import TokenBatch as TokenBatch
from rlinf.models.language.tokens import text_context as text_context
from rlinf.models.language.tokens import token_batch as token_batch
from rlinf.models.language.vocabulary import TokensConfig as TokensConfig
