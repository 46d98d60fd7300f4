"""The data pipeline on Spark: tables made of the journal, in batch and as a stream.

Nothing here is imported by the broker, and importing this package imports neither pyspark nor pyarrow.
"""
