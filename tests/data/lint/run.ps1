# serve
$env:X = "1"
& "C:\llama\llama-server.exe" `
  -m C:\models\t.gguf `
  -md C:\models\d.gguf `
  --draft-max 16 `
  -cd 4096
