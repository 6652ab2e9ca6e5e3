"""hotloop finds what holds a PyTorch training run back, fixes it, and proves it.

Importing this package changes nothing in the process and loads neither torch nor any dependency.
"""

__version__ = "0.1.0"
