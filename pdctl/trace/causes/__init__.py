"""One small function for each cause a room can have ended by: it finds its lines, or it says nothing.

Their order, in which the first that fits is the cause, is ORDER in pdctl/trace/verdict.py.
"""
