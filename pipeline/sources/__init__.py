"""The byte formats that judgments and candidates come in, one file each."""
