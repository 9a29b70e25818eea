"""Every verb and its options, for completion; written from the real application by tests/cli/test_completion.py."""

RUN_VERBS = ("status", "logs", "down", "ask")

OPTIONS: dict[str, tuple[str, ...]] = {}
