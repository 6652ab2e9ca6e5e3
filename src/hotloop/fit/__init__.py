"""`hotloop fit`: where the memory of a training goes, and whether it fits."""
