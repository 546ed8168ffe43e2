"""Base of all packages: options, errors, records, storage, threads and memory, shared kernels."""
