# serve
$env:X = "1"
& "C:\llama\llama-server.exe" `
  -m C:\models\t.gguf `
  -md C:\models\d.gguf --spec-type draft-simple `
  --spec-draft-n-max 16
