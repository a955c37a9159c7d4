"""Ranks as processes: forked, watched and ended by a keeper process."""
