rem don't
C:\l\llama-server.exe -m C:\m\t.gguf ^
  -md C:\m\d.gguf ^
  --draft-max 8
