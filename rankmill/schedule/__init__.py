"""Runs by a cron line, in the foreground: when they begin, what happens between them, and the processes they are."""
