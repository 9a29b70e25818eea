#!/usr/bin/env bash
# 2P1D on one host, by hand.
set -euo pipefail
export MODEL=/models/qwen3 SGLANG_DISAGGREGATION_WAITING_TIMEOUT=100000
COMMON="--transfer nothing"
for log in p1 p2 d; do mkdir -p "$log"; done

CUDA_VISIBLE_DEVICES=0 python -m sglang.launch_server --model-path "$MODEL" --disaggregation-mode prefill \
  --host 0.0.0.0 --port 30000 --disaggregation-transfer-backend nixl > p1/log 2>&1 &
CUDA_VISIBLE_DEVICES=1 python -m sglang.launch_server --model-path "$MODEL" --disaggregation-mode prefill \
  --port 30001 --disaggregation-bootstrap-port 8999 --disaggregation-transfer-backend nixl > p2/log 2>&1 &
CUDA_VISIBLE_DEVICES=2 python -m sglang.launch_server --model-path ${MODEL} --disaggregation-mode decode \
  --port ${PORT:-30002} --disaggregation-transfer-backend=nixl &
echo 'python -m sglang.launch_server --disaggregation-mode prefill'
python -m sglang_router.launch_router --pd-disaggregation --prefill http://127.0.0.1:30000 \
  --prefill http://127.0.0.1:30001 none --decode http://127.0.0.1:30002 --host 0.0.0.0 --port 8000
wait
