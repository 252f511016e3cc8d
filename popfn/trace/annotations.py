"""jaxtyping annotations: checked once per trace, and read as specs.

An annotation is read by its public text alone, `dim_str` and `dtypes`. Its dimensions mean what they mean in
jaxtyping: `4`, `batch`, `_`, `...`, `*names`, `#broadcast`, `rows=4`, and expressions such as `n+1`. An
annotation that cannot be resolved, or that is none of jaxtyping's array types, is not checked.
"""
from __future__ import annotations

import builtins
import functools
import inspect
import sys
import types
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union
from weakref import WeakKeyDictionary

import numpy as np
from typing_extensions import TypeAliasType, get_args, get_origin, get_type_hints

from .errors import AnnotationError, function_name, message

Shape = Tuple[int, ...]
RESULT = "return"  # what Python calls the result's annotation

_UNIONS = (Union, getattr(types, "UnionType", Union))
_SCALAR_KINDS = {bool: "b", int: "iu", float: "f", complex: "c"}


# ---------------------------------------------------------------------------- what an annotation says
@dataclass(frozen=True)
class Dim:
    """One word of an annotation's dimensions. Without size, name or code it stands for anything."""

    text: str
    size: Optional[int] = None
    name: Optional[str] = None
    code: Optional[types.CodeType] = None
    broadcast: bool = False
    variadic: bool = False


@dataclass(frozen=True)
class ArrayType:
    """One jaxtyping array type: dtypes by name or pattern (None for any), and dimensions."""

    text: str
    dtypes: Optional[Tuple[Any, ...]]
    dims: Tuple[Dim, ...]

    @property
    def kind(self) -> str:
        """Float32 of Float32[Array, "n"]."""
        return self.text.split("[")[0]

    @property
    def variadic(self) -> Optional[int]:
        """The position of the dimension that takes any number of axes, if there is one."""
        return next((i for i, d in enumerate(self.dims) if d.variadic), None)

    @property
    def symbolic(self) -> bool:
        """Whether a dimension is an expression."""
        return any(d.code is not None for d in self.dims)


@dataclass(frozen=True)
class Annotation:
    """The annotation of one parameter, or of the result: the array types that it admits, and what else."""

    text: str
    arrays: Tuple[ArrayType, ...]
    scalars: str = ""        # the dtype kinds of Python's own number types in a union
    none: bool = False
    others: bool = False     # a member that is not an array type: any value but an array may be meant by it

    @property
    def symbolic(self) -> bool:
        """Whether a dimension of one of the array types is an expression."""
        return any(a.symbolic for a in self.arrays)


def parse_dims(text: str) -> Tuple[Dim, ...]:
    """The dimensions of `"batch 64"`. Raises AnnotationError for what has no meaning outside a PyTree."""
    dims = tuple(_parse_dim(word) for word in text.split())
    if sum(d.variadic for d in dims) > 1:
        raise AnnotationError(f'"{text}" has two dimensions that take any number of axes')
    return dims


def _parse_dim(text: str) -> Dim:
    if text == "...":
        return Dim(text, variadic=True)
    word = text.lstrip("#*_?")
    marks = text[:len(text) - len(word)]
    if "?" in marks:
        raise AnnotationError(f"`{text}` has a meaning inside a PyTree annotation only")
    broadcast, variadic = "#" in marks, "*" in marks
    if "_" in marks:
        return Dim(text, variadic=variadic)
    if word.count("=") == 1:
        word = word.split("=")[1]
    if word.isidentifier():
        return Dim(text, name=word, broadcast=broadcast, variadic=variadic)
    if word.isdecimal():
        return Dim(text, size=int(word), broadcast=broadcast)
    try:
        code = compile(word, "<dimension>", "eval")
    except SyntaxError:
        raise AnnotationError(f"`{text}` is not a dimension: write a size, a name or an expression") from None
    if code.co_names:
        return Dim(text, code=code, broadcast=broadcast)
    return Dim(text, size=eval(code), broadcast=broadcast)  # 2*8


def _is_array_type(annotation: Any) -> bool:
    # Looked up, not imported: the release for Python 3.8 imports JAX where it finds it, which takes half a
    # second, and as long as nobody has imported jaxtyping there are none of its annotations.
    jaxtyping = sys.modules.get("jaxtyping")
    if jaxtyping is None or not isinstance(annotation, type):
        return False
    return issubclass(annotation, jaxtyping.AbstractArray)


def _members(annotation: Any) -> List[Any]:
    """The members of a union, nested ones included; of anything else, itself."""
    while isinstance(annotation, TypeAliasType):
        annotation = annotation.__value__
    if get_origin(annotation) in _UNIONS:
        return [m for part in get_args(annotation) for m in _members(part)]
    return [annotation]


def _parse_annotation(annotation: Any, text: Optional[str]) -> Optional[Annotation]:
    """Read a resolved annotation; None if there is nothing in it to check."""
    arrays: List[ArrayType] = []
    scalars, none, others = "", False, False
    for member in _members(annotation):
        if _is_array_type(member):
            # Whatever is not a sequence is the mark for any dtype, which has no public name.
            dtypes = tuple(member.dtypes) if isinstance(member.dtypes, (list, tuple)) else None
            arrays.append(ArrayType(member.__name__.replace("'", '"'), dtypes, parse_dims(member.dim_str)))
        elif member is type(None):
            none = True
        elif isinstance(member, type) and member in _SCALAR_KINDS:
            scalars += _SCALAR_KINDS[member]
        else:
            origin = get_origin(member) or member
            if not isinstance(origin, type) or origin is object or hasattr(origin, "dtype"):
                return None  # it admits every array
            others = True
    if not arrays:
        return None
    names = [a.text for a in arrays] + ["None"] * none
    return Annotation(text or " or ".join(names), tuple(arrays), scalars, none, others)


# ---------------------------------------------------------------------------- the annotations of a function
@dataclass(frozen=True)
class Annotations:
    """The annotations of one function that can be checked, by parameter, the result's under `return`."""

    by_name: Dict[str, Annotation]
    order: Tuple[str, ...]   # the parameters, those with expressions last: the others bind their names
    starred: Dict[str, int]  # *args: 1, **kwargs: 2


_parsed: WeakKeyDictionary[Any, Optional[Annotations]] = WeakKeyDictionary()


def _plain_function(f: Any) -> Any:
    """The function whose annotations speak for `f`, or None."""
    while not isinstance(f, types.FunctionType):
        if isinstance(f, functools.partial):
            f = f.func
        elif isinstance(f, types.MethodType):
            f = f.__func__
        else:
            call = type(f).__call__
            if not isinstance(call, types.FunctionType) or hasattr(f, "__wrapped__"):
                return None
            f = call
    return f


def annotations_of(f: Any) -> Optional[Annotations]:
    """What can be checked of a callable's annotations; None for nothing. Read once per function."""
    function = _plain_function(f)
    try:
        if function is None or not function.__annotations__:
            return None
    except NameError:  # since Python 3.14 annotations are evaluated when they are asked for
        return None
    try:
        return _parsed[function]
    except KeyError:
        found = _parsed[function] = _parse_function(function)
        return found


def _parse_function(f: types.FunctionType) -> Optional[Annotations]:
    if hasattr(f, "__wrapped__"):  # what `functools.wraps` copied need not hold for the wrapper
        return None
    parameters = inspect.signature(f).parameters
    by_name = {}
    for name, raw in f.__annotations__.items():
        try:  # one by one, so that a name that is known to type checkers only does not hide the others
            hint = get_type_hints(types.SimpleNamespace(__annotations__={name: raw}), f.__globals__)[name]
        except Exception:
            continue
        if name in parameters and parameters[name].default is None:
            hint = Optional[hint]
        try:
            annotation = _parse_annotation(hint, raw if isinstance(raw, str) else None)
        except AnnotationError as error:
            subject = "the result" if name == RESULT else f"argument {name}"
            raise AnnotationError(message(
                f"{function_name(f)}: the annotation of {subject} cannot be read", str(error))) from None
        if annotation is not None:
            by_name[name] = annotation
    starred = {name: 1 if p.kind is p.VAR_POSITIONAL else 2 for name, p in parameters.items()
               if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    order = sorted(by_name.keys() - {RESULT}, key=lambda n: (by_name[n].symbolic, list(parameters).index(n)))
    return Annotations(by_name, tuple(order), starred) if by_name else None


# ---------------------------------------------------------------------------- matching
@dataclass
class Bindings:
    """The dimension names of one call: what each stands for, and which argument said so."""

    function: Any
    annotations: Annotations
    sizes: Dict[str, int] = field(default_factory=dict)
    shapes: Dict[str, Tuple[bool, Shape]] = field(default_factory=dict)  # of *names; True: it may broadcast
    origin: Dict[str, str] = field(default_factory=dict)

    def copy(self) -> Bindings:
        """The same bindings, to try a member of a union with."""
        return replace(self, sizes=dict(self.sizes), shapes=dict(self.shapes), origin=dict(self.origin))

    def __str__(self) -> str:
        bound = {**self.sizes, **{f"*{name}": shape for name, (_, shape) in self.shapes.items()}}
        return ", ".join(f"{name} = {value} by {self.origin[name]}" for name, value in bound.items())


def _seen(value: Any) -> str:
    """`float32[64,10]` for an array, the type's name for anything else."""
    if not _is_array(value):
        return "None" if value is None else f"a {type(value).__name__}"
    return f"{np.dtype(value.dtype).name}[{','.join(map(str, value.shape))}]"


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _has_dtype(dtype: np.dtype[Any], wanted: Tuple[Any, ...]) -> bool:
    return any(w == dtype.name if isinstance(w, str) else w.match(dtype.name) for w in wanted)


def _match_array(array: ArrayType, value: Any, by: str, bound: Bindings) -> Optional[str]:
    """Bind the dimensions of `array` to the shape of `value`; the fault if they do not go together."""
    dtype, shape = np.dtype(value.dtype), tuple(value.shape)
    if array.dtypes is not None and not _has_dtype(dtype, array.dtypes):
        return f"its dtype is {dtype.name}, not {_dtype_words(array)}"
    dims, split = array.dims, array.variadic
    if split is None:
        if len(shape) != len(dims):
            return f"it has {_axes(len(shape))}, not {len(dims)}"
        pairs = list(zip(dims, range(len(dims))))
    else:
        after = len(dims) - split - 1
        if len(shape) < len(dims) - 1:
            return f"it has {_axes(len(shape))}, not {len(dims) - 1} or more"
        pairs = list(zip(dims[:split], range(split)))
        pairs += zip(dims[split + 1:], range(len(shape) - after, len(shape)))
        fault = _match_shape(dims[split], shape[split:len(shape) - after], by, bound)
        if fault:
            return fault
    for dim, axis in sorted(pairs, key=lambda pair: pair[0].code is not None):
        fault = _match_size(dim, axis, shape[axis], by, bound)
        if fault:
            return fault
    return None


def _match_size(dim: Dim, axis: int, size: int, by: str, bound: Bindings) -> Optional[str]:
    if dim.broadcast and size == 1:
        return None
    if dim.size is not None:
        return None if size == dim.size else f"dimension {axis} is {size}, not {dim.size}"
    if dim.code is not None:
        try:
            value = eval(dim.code, {}, bound.sizes)
        except NameError:
            free = [n for n in dim.code.co_names if n not in bound.sizes and not hasattr(builtins, n)]
            return f"dimension {axis} is {dim.text}, but nothing says what {' and '.join(free)} is"
        except Exception as error:
            return f"dimension {axis} is {dim.text}, which cannot be computed: {error}"
        return None if size == value else f"dimension {axis} is {size}, but {dim.text} is {value}"
    if dim.name is None:
        return None
    if dim.name not in bound.sizes:
        bound.sizes[dim.name], bound.origin[dim.name] = size, by
        return None
    known, here = bound.sizes[dim.name], " in the same array" if bound.origin[dim.name] == by else ""
    return None if size == known else f"dimension {axis} is {size}, but {dim.name} is {known}{here}"


def _match_shape(dim: Dim, shape: Shape, by: str, bound: Bindings) -> Optional[str]:
    """Bind the axes that `*name` or `...` takes."""
    if dim.name is None:
        return None
    key = f"*{dim.name}"
    if dim.name not in bound.shapes:
        bound.shapes[dim.name], bound.origin[key] = (dim.broadcast, shape), by
        return None
    loose, known = bound.shapes[dim.name]
    try:
        both = np.broadcast_shapes(shape, known)
    except ValueError:
        return f"the axes of {dim.text} are {shape}, which do not broadcast with {key} = {known}"
    # A shape that must not broadcast is the whole one: the other has to broadcast to it.
    if (not loose and both != known) or (not dim.broadcast and both != shape):
        return f"the axes of {dim.text} are {shape}, but {key} is {known}"
    bound.shapes[dim.name] = (loose and dim.broadcast, both)
    return None


def _axes(n: int) -> str:
    return f"{n} dimension{'' if n == 1 else 's'}"


def _dtype_words(array: ArrayType) -> str:
    names = [d if isinstance(d, str) else d.pattern for d in array.dtypes or () if d != "bool_"]
    return " or ".join(names) if len(names) < 4 else f"one that {array.kind} admits"


def _check(subject: str, annotation: Annotation, value: Any, bound: Bindings) -> None:
    """Match one value with its annotation and bind its dimension names, or raise AnnotationError."""
    if not _is_array(value):
        if (value is None and annotation.none) or annotation.others:
            return
        faults = ["it is not an array"]
    elif annotation.scalars and not tuple(value.shape) and np.dtype(value.dtype).kind in annotation.scalars:
        return
    else:
        faults = []
        for array in annotation.arrays:
            trial = bound.copy()
            fault = _match_array(array, value, subject, trial)
            if fault is None:
                bound.sizes, bound.shapes, bound.origin = trial.sizes, trial.shapes, trial.origin
                return
            faults.append(fault if len(annotation.arrays) == 1 else f"{array.text}: {fault}")
    verb = "return" if subject == "the result" else "pass"
    raise AnnotationError(message(
        f"{function_name(bound.function)}: {subject} does not fit its annotation {annotation.text}",
        f"seen: {_seen(value)}",
        *faults,
        f"bound before: {bound}" if bound.origin else None,
        f"{verb} what the annotation says, or change the annotation",
    ))


def check_arguments(f: Any, arguments: Mapping[str, Any]) -> Optional[Bindings]:
    """Check the arguments of a call against the jaxtyping annotations of `f`.

    `arguments` holds each argument by its parameter's name: an array or its aval, which is anything with a
    shape and a dtype; `*args` as a tuple and `**kwargs` as a dict, as in the function itself. Returns what
    `check_result` needs, None where nothing is annotated. Raises AnnotationError.

    >>> from jaxtyping import Float32
    >>> def scale(x: Float32[np.ndarray, "n"], by: Float32[np.ndarray, "n"]): ...
    >>> bindings = check_arguments(scale, {"x": np.ones(3, np.float32), "by": np.ones(3, np.float32)})
    >>> str(bindings)
    'n = 3 by argument x'
    """
    annotations = annotations_of(f)
    if annotations is None:
        return None
    bound = Bindings(f, annotations)
    for name in annotations.order:
        if name not in arguments:
            continue
        annotation, value, stars = annotations.by_name[name], arguments[name], annotations.starred.get(name)
        if stars is None:
            _check(f"argument {name}", annotation, value, bound)
        else:
            for key, part in enumerate(value) if stars == 1 else value.items():
                _check(f"argument {name}[{key!r}]", annotation, part, bound)
    return bound


def check_result(bindings: Optional[Bindings], result: Any) -> None:
    """Check what the function returned, by the names that its arguments bound. Raises AnnotationError."""
    if bindings is not None and RESULT in bindings.annotations.by_name:
        _check("the result", bindings.annotations.by_name[RESULT], result, bindings)


# ---------------------------------------------------------------------------- specs
def specs_from_annotations(f: Any) -> Tuple[Tuple[Shape, np.dtype[Any]], ...]:
    """The shape and dtype of each positional parameter, from annotations that fix both.

    Parameters are left out from the first one on that has a default and no array annotation. Raises
    AnnotationError, with the parameter's name, where an annotation is missing, admits several dtypes, or
    leaves a size open.

    >>> from jaxtyping import Float32
    >>> def scale(x: Float32[np.ndarray, "n=3 4"], by: Float32[np.ndarray, ""]): ...
    >>> specs_from_annotations(scale)
    (((3, 4), dtype('float32')), ((), dtype('float32')))
    """
    if hasattr(f, "__wrapped__"):
        raise AnnotationError(message(
            f"{function_name(f)}: its annotations are those of the function that it wraps",
            "ask for the specs of that function: a transform may change what its arguments are"))
    annotations = annotations_of(f)
    known = {} if annotations is None else annotations.by_name
    specs = []
    for name, p in inspect.signature(f).parameters.items():
        annotation = known.get(name)
        has_default = p.default is not p.empty
        if annotation is None and has_default:
            break
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.KEYWORD_ONLY):
            if p.kind is p.KEYWORD_ONLY and not has_default:
                raise _no_spec(f, name, annotation, "it can be given by keyword only")
            if annotation is not None and not has_default:
                raise _no_spec(f, name, annotation, "it takes any number of arrays")
            continue
        if annotation is None:
            raise _no_spec(f, name, None, "it has no array annotation")
        found = {_spec_of(f, name, annotation, array) for array in annotation.arrays}
        if len(found) > 1:
            raise _no_spec(f, name, annotation, "its members differ")
        specs.append(found.pop())
    return tuple(specs)


def _spec_of(f: Any, name: str, annotation: Annotation, array: ArrayType) -> Tuple[Shape, np.dtype[Any]]:
    shape = []
    for dim in array.dims:
        if dim.size is None or dim.broadcast:
            todo = f"; write `{dim.text}=64` for a size of 64" if dim.text == dim.name else ""
            raise _no_spec(f, name, annotation, f"`{dim.text}` is not a size{todo}")
        shape.append(dim.size)
    names = [d for d in array.dtypes or () if d != "bool_"]
    if len(names) != 1 or not isinstance(names[0], str):
        raise _no_spec(f, name, annotation, f"{array.kind} is not one dtype")
    return tuple(shape), np.dtype(names[0])


def _no_spec(f: Any, name: str, annotation: Optional[Annotation], fault: str) -> AnnotationError:
    seen = "" if annotation is None else f" from its annotation {annotation.text}"
    return AnnotationError(message(
        f"{function_name(f)}: no spec for parameter {name}{seen}", fault,
        'annotate it in full, such as Float32[pf.Array, "64 784"], or pass the specs by hand'))
