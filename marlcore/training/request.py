"""What a caller asks for: the arguments of `train`, `start` and the other doors as one value, unchecked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # a request is made before anything is imported that takes long
    from ..interfaces import Algorithm
    from ..spaces import Spaces
    from .config import Config
    from .offline import OfflineData
    from .record import Callback, InitFrom

Algorithms: TypeAlias = "Algorithm | str | Mapping[str, Algorithm | str]"


@dataclass(frozen=True)
class Request:
    """The arguments of `train`, the recorded data of `train_offline`, and what other doors add."""

    env_fn: Callable[[], Any] | str | Spaces
    algorithm: Algorithms
    config: Config | None = None
    progress: bool = False
    resume: str | Path | None = None
    callback: Callback | None = None
    init_from: InitFrom | None = None
    init_strict: bool = True
    data: OfflineData | None = None
    plots: bool = True  # curves at the end
