"""Small networks on the compiled core: chains of fully connected layers that act and learn without torch.

The arrays are others': weights stay where they are published, saved and trained. This room keeps packed copies of them
for the products, and the layers' outputs.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
