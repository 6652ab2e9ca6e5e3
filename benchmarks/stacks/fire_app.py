"""A fire command."""

import fire
from plain import train

fire.Fire({"train": train})
