"""Types of the compiled module. Its docstrings are at run time: ``help(foldcast.allreduce)``."""

from typing import Any, Dict, Iterable, List, Literal, Optional, Sequence, Tuple, Union

from numpy import ndarray
from numpy.typing import ArrayLike

__version__: str
table_version: int

_Array = Union[ArrayLike, Any]  # Any: whatever has __dlpack__
_Reduction = Literal["sum", "max", "min", "prod"]

class Handle:
    """A running call."""

    def wait(self, timeout: Optional[float] = None) -> Any: ...  # ndarray, or a list of them
    def done(self) -> bool: ...

class Group:
    """Ranks that call together."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def ranks(self) -> Tuple[int, ...]: ...
    @property
    def name(self) -> str: ...
    @property
    def timeout(self) -> Optional[float]: ...
    @timeout.setter
    def timeout(self, timeout: Optional[float]) -> None: ...
    @property
    def ended(self) -> Optional[str]: ...
    def allreduce(
        self,
        array: _Array,
        reduction: _Reduction = "sum",
        *,
        out: Optional[ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> ndarray: ...
    def allreduce_async(
        self,
        array: _Array,
        reduction: _Reduction = "sum",
        *,
        out: Optional[ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> Handle: ...
    def allreduce_fused(
        self,
        arrays: Iterable[_Array],
        reduction: _Reduction = "sum",
        *,
        out: Optional[Iterable[ndarray]] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> List[ndarray]: ...
    def allreduce_fused_async(
        self,
        arrays: Iterable[_Array],
        reduction: _Reduction = "sum",
        *,
        out: Optional[Iterable[ndarray]] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> Handle: ...
    def broadcast(
        self,
        array: _Array,
        root: int = 0,
        *,
        out: Optional[ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> ndarray: ...
    def broadcast_async(
        self,
        array: _Array,
        root: int = 0,
        *,
        out: Optional[ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> Handle: ...
    def allgather(
        self,
        array: _Array,
        *,
        equal: bool = True,
        out: Optional[ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> ndarray: ...
    def allgather_async(
        self,
        array: _Array,
        *,
        out: Optional[ndarray] = None,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> Handle: ...
    def barrier(self, timeout: Optional[float] = None) -> None: ...
    def shrink(self, timeout: Optional[float] = None) -> Group: ...
    def abort(self) -> None: ...
    def destroy(self) -> None: ...

def init(timeout: Optional[float] = None) -> None: ...
def is_initialized() -> bool: ...
def rank() -> int: ...
def size() -> int: ...
def local_rank() -> int: ...
def local_size() -> int: ...
def allreduce(
    array: _Array,
    reduction: _Reduction = "sum",
    *,
    out: Optional[ndarray] = None,
    group: Union[None, str, Group] = None,
    name: Optional[str] = None,
    timeout: Optional[float] = None,
) -> ndarray: ...
def allreduce_async(
    array: _Array,
    reduction: _Reduction = "sum",
    *,
    out: Optional[ndarray] = None,
    group: Union[None, str, Group] = None,
    name: Optional[str] = None,
    timeout: Optional[float] = None,
) -> Handle: ...
def allreduce_fused(
    arrays: Iterable[_Array],
    reduction: _Reduction = "sum",
    *,
    out: Optional[Iterable[ndarray]] = None,
    group: Union[None, str, Group] = None,
    name: Optional[str] = None,
    timeout: Optional[float] = None,
) -> List[ndarray]: ...
def allreduce_fused_async(
    arrays: Iterable[_Array],
    reduction: _Reduction = "sum",
    *,
    out: Optional[Iterable[ndarray]] = None,
    group: Union[None, str, Group] = None,
    name: Optional[str] = None,
    timeout: Optional[float] = None,
) -> Handle: ...
def broadcast(
    array: _Array,
    root: int = 0,
    *,
    out: Optional[ndarray] = None,
    group: Union[None, str, Group] = None,
    name: Optional[str] = None,
    timeout: Optional[float] = None,
) -> ndarray: ...
def broadcast_async(
    array: _Array,
    root: int = 0,
    *,
    out: Optional[ndarray] = None,
    group: Union[None, str, Group] = None,
    name: Optional[str] = None,
    timeout: Optional[float] = None,
) -> Handle: ...
def allgather(
    array: _Array,
    *,
    equal: bool = True,
    out: Optional[ndarray] = None,
    group: Union[None, str, Group] = None,
    name: Optional[str] = None,
    timeout: Optional[float] = None,
) -> ndarray: ...
def allgather_async(
    array: _Array,
    *,
    out: Optional[ndarray] = None,
    group: Union[None, str, Group] = None,
    name: Optional[str] = None,
    timeout: Optional[float] = None,
) -> Handle: ...
def empty(shape: Union[int, Sequence[int]], dtype: Any = "float64") -> ndarray: ...
def barrier(group: Union[None, str, Group] = None, timeout: Optional[float] = None) -> None: ...
def new_group(ranks: Iterable[int], name: Optional[str] = None, timeout: Optional[float] = None) -> Group: ...
def group(name: str) -> Group: ...
def shrink(group: Union[None, str, Group] = None, timeout: Optional[float] = None) -> Group: ...
def abort() -> None: ...
def shutdown() -> None: ...
def set_product(name: str) -> None: ...
def product() -> str: ...
def build_info() -> Dict[str, Any]: ...
def products() -> List[Dict[str, Any]]: ...
def _check_product(dtype: str, reduction: str) -> Optional[Tuple[str, str, str]]: ...
def _set_split_strategy(group: str, by_index: Optional[Sequence[int]], by_size: Optional[Sequence[float]]) -> None: ...
def table_address() -> int: ...
def _at_exit() -> None: ...
def _pool() -> Tuple[int, int]: ...
