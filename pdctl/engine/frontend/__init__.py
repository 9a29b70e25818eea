"""Node 0's HTTP process: routes, tokenizer manager, requests in progress (sglang 0.5.23 srt/entrypoints)."""
