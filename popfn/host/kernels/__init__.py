"""What kernels are made of, for the ops and the engines alike: a floor below both, on the dtypes and NumPy alone.

The kernels themselves stand beside their ops in `popfn.host.ops`: each module there ends with its table of them.
"""
