"""popfn.errors: every error that popfn raises on purpose. Each is a PopfnError and a built-in exception too."""
from .trace.errors import (
    AnnotationError as AnnotationError,
    ArgumentError as ArgumentError,
    AxisError as AxisError,
    ConcretizationError as ConcretizationError,
    DeviceError as DeviceError,
    DtypeError as DtypeError,
    InputError as InputError,
    JaxprError as JaxprError,
    LeakError as LeakError,
    LoweringError as LoweringError,
    MissingRuleError as MissingRuleError,
    NarrowingError as NarrowingError,
    PopfnError as PopfnError,
    RangeError as RangeError,
    ShapeError as ShapeError,
    TreeError as TreeError,
)
