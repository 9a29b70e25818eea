"""Node 0's HTTP process: routes, tokenizer manager, requests on their way (sglang 0.5.23 srt/entrypoints)."""
