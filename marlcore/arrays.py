"""Converts users' values to NumPy arrays: torch tensors, and bfloat16, which NumPy lacks without ml_dtypes."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

BFLOAT16 = "bfloat16"

_noticed = False


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """Returns the NumPy dtype for a NumPy dtype, its name, or the torch dtype of the same name.

    Raises TypeError if NumPy has no such dtype, ModuleNotFoundError for bfloat16 without ml_dtypes.
    """
    name = str(dtype).removeprefix("torch.")
    if name != BFLOAT16:
        return np.dtype(name if name != str(dtype) else dtype)
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        raise ModuleNotFoundError("bfloat16 needs ml_dtypes: pip install ml_dtypes", name="ml_dtypes") from None
    known: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return known


def may_be_infinite(dtype: np.dtype[Any]) -> bool:
    """Whether values of this dtype may be NaN or infinite. (`dtype.kind` does not tell for bfloat16.)"""
    return dtype.kind in "fc" or dtype.name == BFLOAT16


def is_tensor(value: Any) -> bool:
    """Whether the value is a torch tensor, without importing torch."""
    return value.__class__ is not np.ndarray and hasattr(value, "requires_grad")


def array_of(tensor: Any) -> NDArray[Any]:
    """Returns a view of a CPU tensor as an array, bfloat16 included. Raises TypeError if NumPy cannot view it."""
    tensor = tensor.detach()
    if str(tensor.dtype) != f"torch.{BFLOAT16}":
        return np.asarray(tensor)
    import torch

    return tensor.view(torch.int16).numpy().view(dtype_of(BFLOAT16))  # type: ignore[no-any-return]


def as_array(value: Any) -> NDArray[Any]:
    """Does `numpy.asarray`, also for torch tensors; detaches them (one warning), turns bfloat16 into float32."""
    if is_tensor(value):
        array: NDArray[Any] = without_grad(value, notice=True).numpy()  # takes half as long as np.asarray
        return array
    return np.asarray(value)


def without_grad(tensor: Any, notice: bool = False) -> Any:
    """Returns a tensor that NumPy can read: detached, and not bfloat16. `notice`: warn once if it required grad."""
    global _noticed
    if tensor.requires_grad:
        if notice and not _noticed:
            _noticed = True
            warnings.warn("marlcore: a tensor that requires grad is stored without its graph (detached)", stacklevel=2)
        tensor = tensor.detach()
    return tensor.float() if str(tensor.dtype) == f"torch.{BFLOAT16}" else tensor
