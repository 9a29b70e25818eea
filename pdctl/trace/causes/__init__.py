"""One small function for each cause that can end a room: it returns a finding with its lines, or None.

ORDER in pdctl/trace/verdict.py lists them; the first one that fits is the cause.
"""
