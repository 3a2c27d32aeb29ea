"""Start of the Python processes of Spark's JVM: `sitecustomize.py`, in a folder that only their PYTHONPATH names."""
