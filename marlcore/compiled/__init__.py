"""Small networks on the compiled core: chains of fully connected layers that act and learn without torch.

The arrays are others': weights stay where they are published, saved and trained. This room keeps packed copies of them
for the products, and the layers' outputs.
"""

from .actions import EnumeratedActions, ScaledActions, TeamChoices
from .adam import Adam
from .chain import Chain, Floats, Layer, padded_zeros, pointer, use_level
from .draws import (
    DRAWN,
    HALF_LOG_2PI,
    LOG_PROB,
    LOG_STD,
    Bits,
    Categories,
    Normals,
    Sampled,
    draws_of,
    explore_rows,
    noisy_actions,
    of_members,
)
from .inputs import Inputs
from .moments import LEAST_VARIANCE, LIMIT
from .acting_networks import MEMBER, DenseNetwork, MemberNetworks, NamedChain, QuantileNetwork
from .policies import CompiledPolicy, DrawingPolicy, NoisyBoxPolicy, TeamValuePolicy, ValuePolicy
from .priorities import quantile_loss, step_error
