"""Judgments of documents: read from files of their own, several of a document made one, and joined to the rows."""
