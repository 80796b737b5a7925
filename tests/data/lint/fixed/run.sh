#!/bin/bash
# serve --draft-max with a quote that's open in a comment
set -e
export LLAMA_ARG_SPEC_DRAFT_N_MAX=8
MODEL="$HOME/m/t.gguf"
if [ -f "$MODEL" ]; then
  CUDA_VISIBLE_DEVICES=0 ./llama-server \
    -m "$MODEL" \
    -md "$HOME/m/d.gguf" --spec-type draft-simple \
    --spec-draft-n-max 16 \
    --spec-draft-n-min "$MIN" \
    --port 8080 > log 2>&1 &
fi
bash -c 'llama-server -m x'
llama-server $ARGS -md d.gguf
cat <<EOF
llama-server isn't here
EOF
