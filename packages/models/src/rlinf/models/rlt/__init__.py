"""RLT: a small actor that changes what a frozen vision-language-action policy proposes, by a token of what that one sees."""

from rlinf.models.rlt.policy import RLTPolicyConfig as RLTPolicyConfig
