"""The ground that all rooms stand on: options, errors, records, storage, threads and memory, shared kernels."""
