#!/bin/bash
# serve --draft-max with a quote that's open in a comment
set -e
export LLAMA_ARG_DRAFT_MAX=8
MODEL="$HOME/m/t.gguf"
if [ -f "$MODEL" ]; then
  CUDA_VISIBLE_DEVICES=0 ./llama-server \
    -m "$MODEL" \
    -md "$HOME/m/d.gguf" \
    --draft-max 16 \
    --draft-min "$MIN" \
    -cd 4096 \
    --port 8080 > log 2>&1 &
fi
bash -c 'llama-server -m x --draft 3'
llama-server $ARGS -md d.gguf
cat <<EOF
llama-server isn't here
EOF
