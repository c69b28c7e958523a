"""Arrays of a user's values: of torch's tensors, and of bfloat16, which NumPy lacks without the package ml_dtypes."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

BFLOAT16 = "bfloat16"

_noticed = False


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """Returns a dtype of NumPy by its name, by itself, or by torch's dtype of the same name.

    Raises TypeError if NumPy has none, ModuleNotFoundError for bfloat16 without ml_dtypes.
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
    """Whether values of this dtype may be NaN or infinite. NumPy knows no kind of bfloat16."""
    return dtype.kind in "fc" or dtype.name == BFLOAT16


def is_tensor(value: Any) -> bool:
    """Whether the value is a tensor of torch, which this does not import."""
    return value.__class__ is not np.ndarray and hasattr(value, "requires_grad")


def array_of(tensor: Any) -> NDArray[Any]:
    """Returns the memory of a tensor on the CPU, of bfloat16 too, as an array. Raises TypeError if NumPy cannot."""
    tensor = tensor.detach()
    if str(tensor.dtype) != f"torch.{BFLOAT16}":
        return np.asarray(tensor)
    import torch

    return tensor.view(torch.int16).numpy().view(dtype_of(BFLOAT16))  # type: ignore[no-any-return]


def as_array(value: Any) -> NDArray[Any]:
    """Does `numpy.asarray`, for tensors of torch too that require grad, which are detached, or that are of bfloat16."""
    if is_tensor(value):
        array: NDArray[Any] = without_grad(value, notice=True).numpy()  # takes half as long as np.asarray
        return array
    return np.asarray(value)


def without_grad(tensor: Any, notice: bool = False) -> Any:
    """Returns a tensor as one that NumPy can read; with `notice`, warns once per process if it required grad."""
    global _noticed
    if tensor.requires_grad:
        if notice and not _noticed:
            _noticed = True
            warnings.warn("marlcore: a tensor that requires grad is stored without its graph (detached)", stacklevel=2)
        tensor = tensor.detach()
    return tensor.float() if str(tensor.dtype) == f"torch.{BFLOAT16}" else tensor
