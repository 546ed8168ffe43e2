"""The registry's files: how one appears, is made durable and is read; nothing here knows what they mean."""
