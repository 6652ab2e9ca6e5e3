"""Documents out of what people have: files, trees, records, compressed, behind a URL, on a hub.

What is one document:
- a record's text field, in formats of records (jsonl, csv, parquet, Arrow, hub data sets);
- a file inside a directory, cut into pieces of at most 1 MiB where it is longer;
- of a plain text file given by itself (a book, a dump), a piece of 4 to 64 KiB, so that even a
  small file gives enough documents to hold some out;
- with a separator, what stands between two of them.
Pieces end at a blank line, else at a line end, else between two characters. No file is read whole.
"""

from hotloop.data.sources.files import spool_standard_input as spool_standard_input
from hotloop.data.sources.plan import Plan as Plan
from hotloop.data.sources.plan import plan as plan
from hotloop.data.sources.read import read_unit as read_unit
from hotloop.data.sources.tree import standard_library_path as standard_library_path
from hotloop.data.sources.unit import PYTHON_STDLIB as PYTHON_STDLIB
from hotloop.data.sources.unit import Document as Document
from hotloop.data.sources.unit import ReadOptions as ReadOptions
from hotloop.data.sources.unit import Report as Report
from hotloop.data.sources.unit import Unit as Unit
