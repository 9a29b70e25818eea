"""The engine's HTTP routes (sglang 0.5.23 srt/entrypoints): parse a body, ask the tokenizer manager, shape answers."""
