"""Modules: objects whose `build` method makes a graph."""

from typing import Any, Iterable, Union

from popfn.host.tensor import Tensor


class Module:
    """Subclass it and write `build`; an instance can be passed to `Ir.create_graph`.

    Example:
        >>> import popfn.host as popxl
        >>> class Scale(popxl.Module):
        ...     def build(self, x, factor):
        ...         return x * factor
        >>> ir = popxl.Ir()
        >>> ir.create_graph(Scale(), popxl.TensorSpec((2,), popxl.float32), 3.0).name
        'Scale_subgraph(0)'
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Union[None, Tensor, Iterable[Tensor]]:
        return self.build(*args, **kwargs)

    def build(self, *args: Any, **kwargs: Any) -> Union[None, Tensor, Iterable[Tensor]]:
        """Add the module's ops to the current graph and return the outputs."""
        raise NotImplementedError(f"{type(self).__qualname__} has no build method.")
