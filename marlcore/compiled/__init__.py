"""Small networks on the compiled core: chains of fully connected layers that act and learn without torch.

The weights belong to the caller and stay where they are trained, published or saved. This package keeps the layers'
outputs, and packed copies of the weights for its matrix products.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
