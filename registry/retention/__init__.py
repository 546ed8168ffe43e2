"""Retention: which versions may lose their bytes, and how these go without anybody missing them.

What is at stake.  A blob that a log refers to must never be lost, whatever else happens at the same time and wherever
a crash comes: registrations that find the blob there already, promotions, rollbacks, other collectors.  Nobody holds a
lock.  This is the argument; ``tests/registry/test_retention_interleavings.py`` walks through the interleavings.

1. *Which versions go* is decided by entries of the log.  A sweep says that a version has no bytes any more; it was
   marked a time of grace before, and is decided on the state that it follows.  Promotions, rollbacks and tags are
   entries of the same log: of two that write the same number one is decided anew, on the state that the other made.  So
   no alias ever means a swept version, and none is swept that an alias means or a rollback comes back to.

2. *Moving a blob to the trash is harmless.*  It is one rename; whoever misses the blob in its place looks into the
   trash, and the next collector puts back what is referred to or leased.  All that can lose a blob is deleting a file in
   the trash.

3. *A file in the trash has a name that is never used again.*  So a collector that decides late deletes the file that
   it looked at or, if another collector has deleted it or put it back, nothing.

4. *The order of looks.*  A collector looks (a) which files lie in the trash, (b) which leases there are, (c) what the
   logs refer to, and only then deletes: of the files of (a) those that neither (b) nor (c) names, and that have lain
   there for the time of grace.  Whoever refers to a blob (``leases.kept``) (1) writes a lease, (2) sees the blob in its
   place or puts it there, (3) commits the entry, (4) sees whether the blob is still in its place and else puts it again
   from memory, (5) gives up the lease.

   Let a collector delete file *f* of a blob that an entry refers to, and that it did not see referred to: (c) came
   before (3).  Leases are given up after (3), and what a crash leaves is reaped only when its process is gone, so after
   (3) too if it came so far; hence (b) came before (1), and (a) before (2).  So at (2) *f* was in the trash, or out of
   it for good, and the blob was in its place as another file.  That file in turn can be deleted only by a collector that
   found it in the trash after (2), and that one did see the lease or the entry.  A crash after (3) leaves the blob in
   its place or in the trash, where readers and the next collector find it.

5. *Power.*  An entry is durable before its writer goes on.  A collector that relies on the sweep of another waits until
   that one is durable before it deletes; and before it deletes a file in the trash because the blob is in its place
   again, it waits until that is durable.

What is assumed.  Names of files written a time of grace ago are seen in listings (network file systems may lag by
seconds).  A writer on *another* machine, or in another container, does not sleep for longer than its lease lasts (seven
days) between (1) and (3) and die before (4): there nobody can see whether it lives.  The time of grace is for readers
that cannot write leases; the argument above does not need it.

Where the clock says so.  Times are the later of what an entry says and when its file was written, and now is the
earlier of our clock and the file system's, so that a clock that jumps makes things stay longer.
"""
