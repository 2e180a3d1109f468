"""The types of tensors that properties are held to."""

import torch
from hypothesis import strategies as st

FLOATS = st.sampled_from([torch.float64, torch.float32, torch.bfloat16])
