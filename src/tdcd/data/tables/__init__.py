"""Tables in CSV and Parquet files: read with care, aligned by ID, prepared without moving rows."""
