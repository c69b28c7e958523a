"""Small networks on the compiled core: chains of fully connected layers that act and learn without torch.

The arrays are others': weights stay where they are published, saved and trained. This room keeps packed copies of them
for the products, and the layers' outputs.
"""

from .adam import Adam
from .chain import Chain, Floats, Layer, padded_zeros, pointer, use_level, widest
from .inputs import Inputs
