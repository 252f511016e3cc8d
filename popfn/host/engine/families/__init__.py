"""What the ops compute, family by family: value functions as in `engine.values`, and each family's part of the table.

The functions work on the array module `xp`, NumPy or one with its functions: they write nothing in place, and their
shapes depend on shapes alone. What NumPy does faster in its own way stands beside that.
"""
