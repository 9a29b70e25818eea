#!/bin/bash
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode prefill \
  --host 10.1.0.1 --port 30000 --disaggregation-bootstrap-port 8998 --page-size 16 &
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode prefill \
  --host 10.1.0.2 --port 30000 --disaggregation-bootstrap-port 8999 --page-size 16 &
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --disaggregation-mode decode \
  --host 10.1.0.3 --port 30001 --page-size 32 &
python -m sglang_router.launch_router --pd-disaggregation \
  --prefill http://10.1.0.1:30000 --prefill http://10.1.0.2:30000 8998 --decode http://10.1.0.3:30001 --port 8000
