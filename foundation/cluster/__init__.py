"""Work on several processes or machines: tasks go to workers, results come back, lost workers are noticed."""
